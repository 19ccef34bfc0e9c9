"""Who grades."""

from typing import Annotated

from msgspec import field

from slime_events.core.config.base import Settings, doc


class RewardSettings(Settings, frozen=True, kw_only=True):
    """A built-in grader by `rm_type` or the user's own by path, in a process pool with a time limit if it may hang."""

    rm_type: Annotated[
        str | None,
        doc(
            "built-in grader: math, math-verify, deepscaler, dapo, f1, gpqa, ifbench, exact, reasoning_gym, remote_rm, "
            "boxed_X; outside: rewards are sent to the run"
        ),
    ] = None
    rm_url: Annotated[
        str | None,
        doc(
            "of remote_rm: POST {prompt, response, label}, the answer is the reward as JSON; or the /generate of the "
            "teacher of opd-type sglang"
        ),
    ] = None
    custom_rm_path: Annotated[
        str | None, doc("your grader, sync or async: (args, sample) or, with group-rm, (args, samples)")
    ] = None
    custom_reward_post_process_path: Annotated[
        str | None, doc("own normalisation of a batch's rewards: (args, samples) -> (raw_rewards, rewards)")
    ] = None
    reward_key: Annotated[str | None, doc("entry to train on where the grader gives a dict")] = None
    eval_reward_key: Annotated[str | None, doc("the same for evaluation; default: reward-key")] = None
    group_rm: Annotated[bool, doc("grade a whole group at once")] = False
    rm_timeout: Annotated[float, doc("seconds one grading may take", above=0)] = 30.0
    outside_reward_seconds: Annotated[
        float, doc("seconds that a finished sample waits for its reward of rm-type outside", above=0)
    ] = 3600.0
    reward_sources: Annotated[
        list[str], doc("sources that may send the rewards of all samples, not only of those of their own prompts")
    ] = field(default_factory=list)
    rm_workers: Annotated[int, doc("grader processes", above=0)] = 1
    rm_memory_gb: Annotated[
        float, doc("memory of a grader process, in 10^9 bytes; what needs more fails; 0: no limit", least=0)
    ] = 16.0
    rm_env: Annotated[
        list[str], doc("variables that graders see although they look like secrets: the key of a judge, for example")
    ] = field(default_factory=list)
