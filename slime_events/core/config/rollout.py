"""The rollouts of a step: how many groups, how they are sampled, filtered and accepted."""

import math
from typing import Annotated, Any, Literal

from msgspec import field

from slime_events.core.config.base import Settings, doc


class RolloutSettings(Settings, frozen=True, kw_only=True):
    """`rollout_batch_size` groups of `n_samples_per_prompt` samples per step, `num_rollout` steps."""

    num_rollout: Annotated[int | None, doc("training steps in all", above=0)] = None
    num_epoch: Annotated[int | None, doc("... or passes over the prompt data", above=0)] = None
    rollout_batch_size: Annotated[int, doc("groups (prompts) per step", above=0)] = 16
    n_samples_per_prompt: Annotated[int, doc("samples per group", above=0)] = 8
    over_sampling_batch_size: Annotated[
        int | None, doc("groups drawn at each top-up; default: just what is missing")
    ] = None
    dynamic_sampling_filter_path: Annotated[
        str | None, doc("keep or drop a group: module:func, a.b.func or file.py:func")
    ] = None
    rollout_function_path: Annotated[
        str | None,
        doc(
            "own rollout function, in the place of the run's loop: (args, rollout_id, data_source, evaluation=False) "
            "-> RolloutFnTrainOutput"
        ),
    ] = None
    custom_generate_function_path: Annotated[
        str | None, doc("own generate function, for several turns and tools: module:func or file.py:func")
    ] = None
    rollout_sample_hook_path: Annotated[
        list[str],
        doc(
            "called with each generated sample before it is graded, in this order; the flag may be repeated: "
            "(args, sample, *, rollout_id=None, evaluation=False) -> Sample or None"
        ),
    ] = field(default_factory=list)
    rollout_sample_filter_path: Annotated[
        str | None,
        doc("called with the groups of each step, sets remove_sample on samples not to train on: (args, groups)"),
    ] = None
    rollout_all_samples_process_path: Annotated[
        str | None, doc("called with all groups of each step, rejected ones too: (args, all_groups, data_source)")
    ] = None
    custom_rollout_log_function_path: Annotated[
        str | None,
        doc(
            "logs each step; true: in the place of the usual metrics: "
            "(rollout_id, args, samples, extra_metrics, rollout_time) -> bool"
        ),
    ] = None
    custom_convert_samples_to_train_data_path: Annotated[
        str | None,
        doc(
            "makes rewards, loss masks and columns of your own from the samples of each step, by slime's names: "
            "(args, samples) -> dict"
        ),
    ] = None
    custom_eval_rollout_log_function_path: Annotated[
        str | None, doc("the same for each evaluation: (rollout_id, args, data, extra_metrics) -> bool")
    ] = None
    agents: Annotated[
        bool, doc("rollouts are made by agents outside: programs that know only the base URL of a session")
    ] = False
    generate_timeout: Annotated[float, doc("seconds that the generate function may take for a rollout", above=0)] = (
        1800.0
    )
    max_turns: Annotated[int | None, doc("turns of a rollout, for generate functions that ask", above=0)] = None
    custom_config_path: Annotated[
        str | None, doc("YAML file: each key is a setting, or else one more name on the args of your functions")
    ] = None
    custom_config: Annotated[
        dict[str, Any],
        doc("JSON: more names on the args of your functions; here the contents of that file are recorded"),
    ] = field(default_factory=dict)
    max_staleness: Annotated[
        int,
        doc(
            "versions that a step's weights may be ahead of a sample's; 0 synchronous, 1 slime's async. "
            "--over-sampling-batch-size and --update-weights-interval add to it: a note at the start says the bound"
        ),
    ] = 0
    accept_order: Annotated[
        Literal["auto", "prompt", "completion"],
        doc("order groups are accepted in; auto: prompt at staleness 0, else completion"),
    ] = "auto"
    partial_rollout: Annotated[
        bool, doc("suspend unfinished rollouts at step boundaries and resume them under the next weights")
    ] = False
    mask_offpolicy_in_partial_rollout: Annotated[
        bool, doc("train rollouts that were suspended on the tokens of their newest version only")
    ] = False
    rollout_temperature: Annotated[float, doc("sampling temperature, above 0")] = 1.0
    rollout_top_p: Annotated[float, doc("nucleus p")] = 1.0
    rollout_top_k: Annotated[int, doc("top k; -1 is off")] = -1
    rollout_max_context_len: Annotated[int | None, doc("prompt + response, tokens", above=0)] = None
    rollout_max_prompt_len: Annotated[int | None, doc("longer prompts are rejected, tokens", above=0)] = None
    rollout_max_response_len: Annotated[int, doc("new tokens at most", above=0)] = 1024
    rollout_stop: Annotated[list[str], doc("stop strings")] = field(default_factory=list)
    rollout_stop_token_ids: Annotated[list[int], doc("stop token ids")] = field(default_factory=list)
    rollout_skip_special_tokens: Annotated[bool, doc("leave special tokens out of the text")] = False
    rollout_seed: Annotated[int, doc("seed of shuffling and sampling")] = 42
    max_attempts: Annotated[int, doc("tries of one rollout before its group is rejected", above=0)] = 3
    max_waiting_prompts: Annotated[
        int, doc("prompts from outside that may wait; more are asked to come again", above=0)
    ] = 100_000
    rollout_deadline: Annotated[
        float, doc("seconds without any progress before the run stops with a reason", above=0)
    ] = 600.0

    @property
    def longest_prompt(self) -> int | None:
        """Tokens; None: as long as anybody likes."""
        if self.rollout_max_prompt_len is None and self.rollout_max_context_len is not None:
            return self.rollout_max_context_len - 1
        return self.rollout_max_prompt_len

    @property
    def functions_may_grade(self) -> bool:
        """Whether the user's functions see a sample before its grader: they may set its reward, or name a grader."""
        return bool(self.custom_generate_function_path or self.rollout_sample_hook_path or self.rollout_function_path)


def staleness_bound(*, max_staleness: int, publish_every: int, draw: int | None, groups: int) -> int:
    """Versions. draw: groups of an over-sampling draw, None without; groups: of a step.

    Over-sampling keeps its surplus for later steps and so adds to `max_staleness`, and so do versions that are not
    published.
    """
    bound = max_staleness + publish_every - 1
    return bound if draw is None else bound + math.ceil((draw - 1) / groups)
