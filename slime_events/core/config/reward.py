"""Settings of grading."""

from typing import Annotated

from msgspec import field

from slime_events.core.config.base import Settings, doc
from slime_events.core.config.rules import Later, excludes, needs


class RewardSettings(Settings, frozen=True, kw_only=True):
    """A built-in grader or your own. A grader that may hang runs in a process pool with a time limit."""

    LATER = Settings.LATER | Later.RESCORE

    rm_type: Annotated[
        str | None,
        doc(
            "built-in grader: math, math-verify, deepscaler, dapo, f1, gpqa, ifbench, exact, reasoning_gym, remote_rm, "
            "boxed_X; outside: wait for rewards that are sent to the run"
        ),
    ] = None
    rm_url: Annotated[
        str | None,
        doc(
            "URL of remote_rm, which gets POST {prompt, response, label} and answers with the reward as "
            "JSON; or URL of "
            "the /generate of the teacher of opd-type sglang"
        ),
    ] = None
    custom_rm_path: Annotated[
        str | None, doc("your grader, sync or async: (args, sample) or, with group-rm, (args, samples)")
    ] = None
    custom_reward_post_process_path: Annotated[
        str | None,
        doc(
            "your normalisation of a batch's rewards: (args, samples) -> (raw_rewards, rewards)",
            excludes(
                "custom_convert_samples_to_train_data_path",
                why="the function that converts the samples sets their rewards",
            ),
        ),
    ] = None
    reward_key: Annotated[str | None, doc("entry to train on, if the grader returns a dict")] = None
    eval_reward_key: Annotated[
        str | None, doc("entry to report in evaluations, if the grader returns a dict; default: reward-key")
    ] = None
    group_rm: Annotated[
        bool,
        doc(
            "grade a whole group at once",
            needs("custom_rm_path", why="the built-in graders grade one sample at a time"),
        ),
    ] = False
    rm_timeout: Annotated[float, doc("time limit of a grading, in seconds", above=0, also=Later.RESUME)] = 30.0
    outside_reward_seconds: Annotated[
        float,
        doc("with rm-type outside: seconds that a finished sample waits for its reward", above=0, also=Later.RESUME),
    ] = 3600.0
    reward_sources: Annotated[
        list[str],
        doc(
            "sources that may send rewards for all samples, not only for those of their own prompts", also=Later.RESUME
        ),
    ] = field(default_factory=list)
    rm_workers: Annotated[int, doc("grader processes", above=0, also=Later.RESUME)] = 1
    rm_memory_gb: Annotated[
        float,
        doc(
            "memory limit of a grader process, in 10^9 bytes; a grading that needs more fails; 0: no limit",
            least=0,
            also=Later.RESUME,
        ),
    ] = 16.0
    rm_env: Annotated[
        list[str],
        doc(
            "variables to pass to graders although their names look like secrets, such as the key of a judge",
            also=Later.RESUME,
        ),
    ] = field(default_factory=list)
