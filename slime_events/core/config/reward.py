"""Who grades."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from slime_events.core.config.base import Settings


class RewardSettings(Settings, frozen=True, kw_only=True):
    """A built-in grader by `rm_type` or the user's own by path, in a process pool with a time limit if it may hang."""

    rm_type: Annotated[
        str | None,
        Meta(description="built-in grader: math, deepscaler, dapo, f1, gpqa, exact, reasoning_gym, remote_rm, boxed_X"),
    ] = None
    rm_url: Annotated[
        str | None, Meta(description="of remote_rm: POST {prompt, response, label}, the answer is the reward as JSON")
    ] = None
    custom_rm_path: Annotated[
        str | None, Meta(description="own grader, sync or async: (args, sample) or, with group-rm, (args, samples)")
    ] = None
    reward_key: Annotated[str | None, Meta(description="entry to train on where the grader gives a dict")] = None
    eval_reward_key: Annotated[str | None, Meta(description="the same for evaluation; default: reward-key")] = None
    group_rm: Annotated[bool, Meta(description="grade a whole group at once")] = False
    rm_timeout: Annotated[float, Meta(description="seconds one grading may take")] = 30.0
    rm_workers: Annotated[int, Meta(description="grader processes")] = 1
