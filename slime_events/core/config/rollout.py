"""The rollouts of a step: how many groups, how they are sampled, filtered and accepted."""

import math
from typing import Annotated, Any, Literal

from msgspec import field

from slime_events.core.config.base import Settings, doc
from slime_events.core.config.evaluation import ROLLOUT_LOOP
from slime_events.core.config.rules import Later, at_least, excludes, is_below, needs, unused_with, unused_without


class RolloutSettings(Settings, frozen=True, kw_only=True):
    """`num_rollout` steps, each of `rollout_batch_size` groups of `n_samples_per_prompt` samples."""

    num_rollout: Annotated[int | None, doc("training steps of the run", above=0, also=Later.RESUME | Later.LEARN)] = (
        None
    )
    num_epoch: Annotated[
        int | None,
        doc(
            "length of the run in passes over the prompt data, instead of num-rollout",
            needs("prompt_data", "data_source_path", why="prompts from producers have no epochs"),
            above=0,
        ),
    ] = None
    rollout_batch_size: Annotated[int, doc("groups (prompts) per step", above=0)] = 16
    n_samples_per_prompt: Annotated[int, doc("samples per group", above=0)] = 8
    over_sampling_batch_size: Annotated[
        int | None,
        doc(
            "groups requested at each top-up; default: only the missing groups",
            at_least("rollout_batch_size", why="a single top-up must be able to fill a step"),
        ),
    ] = None
    dynamic_sampling_filter_path: Annotated[
        str | None,
        doc(
            "your function that keeps or drops a group: module:func, a.b.func or file.py:func",
            also=Later.LEARN | Later.RESCORE,
        ),
    ] = None
    rollout_function_path: Annotated[
        str | None,
        doc(
            "your rollout function, instead of the built-in one: (args, rollout_id, data_source, evaluation=False) "
            "-> RolloutFnTrainOutput",
            excludes(
                "supervised",
                "load_debug_rollout_data",
                "archive_reuse=rollouts",
                why="both define the samples of a step",
            ),
        ),
    ] = None
    custom_generate_function_path: Annotated[
        str | None, doc("your generate function, for several turns and tools: module:func or file.py:func")
    ] = None
    rollout_sample_hook_path: Annotated[
        list[str],
        doc(
            "your functions to call with each sample before grading, in this order; the flag may be repeated: "
            "(args, sample, *, rollout_id=None, evaluation=False) -> Sample or None"
        ),
    ] = field(default_factory=list)
    rollout_sample_filter_path: Annotated[
        str | None,
        doc("your function that sets remove_sample on samples to leave out of training: (args, groups)"),
    ] = None
    rollout_all_samples_process_path: Annotated[
        str | None,
        doc(
            "your function to call with all groups of each step, including rejected ones: (args, all_groups, "
            "data_source)"
        ),
    ] = None
    custom_rollout_log_function_path: Annotated[
        str | None,
        doc(
            "your function that logs each step; if it returns true, the usual metrics are not logged: "
            "(rollout_id, args, samples, extra_metrics, rollout_time) -> bool"
        ),
    ] = None
    custom_convert_samples_to_train_data_path: Annotated[
        str | None,
        doc(
            "your function that makes rewards, loss masks and further columns from the samples of each step, by "
            "slime's names: (args, samples) -> dict"
        ),
    ] = None
    custom_eval_rollout_log_function_path: Annotated[
        str | None,
        doc(
            "custom-rollout-log-function-path for evaluations: (rollout_id, args, data, extra_metrics) -> bool",
            unused_with(
                "eval_function_path",
                why="your evaluation function logs for itself",
                unless=(f"eval_function_path={ROLLOUT_LOOP}",),
            ),
        ),
    ] = None
    agents: Annotated[
        bool,
        doc(
            "external agents make the rollouts: programs that know only the base URL of a session",
            excludes(
                "rollout_function_path",
                "custom_generate_function_path",
                "rollout_sample_hook_path",
                "supervised",
                "load_debug_rollout_data",
                "archive_reuse=rollouts",
                why="both make the rollouts",
            ),
            excludes("partial_rollout", why="an external program cannot be suspended between two steps of the run"),
        ),
    ] = False
    generate_timeout: Annotated[
        float, doc("time limit of the generate function for a rollout, in seconds", above=0)
    ] = 1800.0
    max_turns: Annotated[int | None, doc("most turns of a rollout, for generate functions that read it", above=0)] = (
        None
    )
    custom_config_path: Annotated[
        str | None, doc("YAML file: each key is a setting, or else a further attribute on the args of your functions")
    ] = None
    custom_config: Annotated[
        dict[str, Any],
        doc("JSON: further attributes on the args of your functions; records the contents of custom-config-path"),
    ] = field(default_factory=dict)
    max_staleness: Annotated[
        int,
        doc(
            "how many versions behind the weights of its step a sample may be; 0: synchronous; 1: as slime's async. "
            "--over-sampling-batch-size and --update-weights-interval raise this limit: see the note at the start",
            least=0,
        ),
    ] = 0
    accept_order: Annotated[
        Literal["auto", "prompt", "completion"],
        doc("order in which groups are accepted; auto: prompt if max-staleness is 0, else completion"),
    ] = "auto"
    partial_rollout: Annotated[
        bool, doc("suspend unfinished rollouts at step boundaries and resume them under the next weights")
    ] = False
    mask_offpolicy_in_partial_rollout: Annotated[
        bool,
        doc(
            "for rollouts that were suspended, train only on the tokens of their newest version",
            unused_without("partial_rollout"),
        ),
    ] = False
    rollout_temperature: Annotated[float, doc("sampling temperature, above 0", above=0)] = 1.0
    rollout_top_p: Annotated[float, doc("nucleus sampling: top p", above=0, most=1)] = 1.0
    rollout_top_k: Annotated[int, doc("top k; -1: off")] = -1
    rollout_max_context_len: Annotated[int | None, doc("most tokens of prompt and response together", above=0)] = None
    rollout_max_prompt_len: Annotated[
        int | None,
        doc(
            "most tokens of a prompt; longer prompts are rejected",
            is_below("rollout_max_context_len", why="no room is left for a response"),
            above=0,
        ),
    ] = None
    rollout_max_response_len: Annotated[int, doc("most tokens of a response", above=0)] = 1024
    rollout_stop: Annotated[list[str], doc("stop strings")] = field(default_factory=list)
    rollout_stop_token_ids: Annotated[list[int], doc("stop token ids")] = field(default_factory=list)
    rollout_skip_special_tokens: Annotated[bool, doc("leave special tokens out of the text")] = False
    rollout_seed: Annotated[int, doc("seed for shuffling and sampling")] = 42
    max_attempts: Annotated[
        int, doc("attempts at a rollout before its group is rejected", above=0, also=Later.RESUME)
    ] = 3
    max_waiting_prompts: Annotated[
        int,
        doc(
            "most prompts from producers that may wait; further ones are refused until there is room",
            above=0,
            also=Later.RESUME,
        ),
    ] = 100_000
    rollout_deadline: Annotated[
        float,
        doc(
            "seconds without progress after which the run fails and prints why",
            above=0,
            also=Later.RESUME | Later.LEARN,
        ),
    ] = 600.0

    @property
    def longest_prompt(self) -> int | None:
        """The most tokens of a prompt; None: no limit."""
        if self.rollout_max_prompt_len is None and self.rollout_max_context_len is not None:
            return self.rollout_max_context_len - 1
        return self.rollout_max_prompt_len

    @property
    def most_open_samples(self) -> int:
        """The most training samples that are open at a time, without the rest of a draw."""
        return self.rollout_batch_size * self.n_samples_per_prompt * (1 + self.max_staleness)

    @property
    def functions_may_grade(self) -> bool:
        """Whether a user's function sees a sample before the grader, and may set its reward or name a grader."""
        return bool(self.custom_generate_function_path or self.rollout_sample_hook_path or self.rollout_function_path)


def staleness_bound(*, max_staleness: int, publish_every: int, draw: int | None, groups: int) -> int:
    """Return how many versions a sample may be behind the weights that train on it.

    draw: groups of an over-sampling draw, None: no over-sampling. groups: groups of a step. Over-sampling keeps surplus
    groups for later steps, so it raises the bound; so do versions that are not published.
    """
    bound = max_staleness + publish_every - 1
    return bound if draw is None else bound + math.ceil((draw - 1) / groups)
