"""What a step is made of: how many groups, how they are sampled, filtered and accepted."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from slime_events.core.config.base import Settings


class RolloutSettings(Settings, frozen=True, kw_only=True):
    """`rollout_batch_size` groups of `n_samples_per_prompt` samples per step, `num_rollout` steps."""

    num_rollout: Annotated[int | None, Meta(description="training steps in all")] = None
    num_epoch: Annotated[int | None, Meta(description="... or passes over the prompt data")] = None
    rollout_batch_size: Annotated[int, Meta(description="groups (prompts) per step")] = 16
    n_samples_per_prompt: Annotated[int, Meta(description="samples per group")] = 8
    over_sampling_batch_size: Annotated[
        int | None, Meta(description="groups drawn at each top-up; default: just what is missing")
    ] = None
    dynamic_sampling_filter_path: Annotated[
        str | None, Meta(description="keep or drop a group: module:func, a.b.func or file.py:func")
    ] = None
    custom_generate_function_path: Annotated[
        str | None, Meta(description="own generate function, for several turns and tools: module:func or file.py:func")
    ] = None
    generate_timeout: Annotated[
        float, Meta(description="seconds that the generate function may take for a rollout")
    ] = 1800.0
    max_turns: Annotated[int | None, Meta(description="turns of a rollout, for generate functions that ask")] = None
    max_staleness: Annotated[
        int,
        Meta(
            description="versions that a step's weights may be ahead of a sample's; 0 synchronous, 1 slime's async. "
            "--over-sampling-batch-size and --update-weights-interval add to it: a note at the start says the bound"
        ),
    ] = 0
    accept_order: Annotated[
        Literal["auto", "prompt", "completion"],
        Meta(description="order groups are accepted in; auto: prompt at staleness 0, else completion"),
    ] = "auto"
    partial_rollout: Annotated[
        bool, Meta(description="unfinished rollouts rest at step boundaries and go on under the next weights")
    ] = False
    mask_offpolicy_in_partial_rollout: Annotated[
        bool, Meta(description="rollouts that rested are trained on the tokens of their newest version only")
    ] = False
    rollout_temperature: Annotated[float, Meta(description="sampling temperature, above 0")] = 1.0
    rollout_top_p: Annotated[float, Meta(description="nucleus p")] = 1.0
    rollout_top_k: Annotated[int, Meta(description="top k; -1 is off")] = -1
    rollout_max_context_len: Annotated[int | None, Meta(description="prompt + response, tokens")] = None
    rollout_max_prompt_len: Annotated[int | None, Meta(description="longer prompts are rejected, tokens")] = None
    rollout_max_response_len: Annotated[int, Meta(description="new tokens at most")] = 1024
    rollout_stop: Annotated[list[str], Meta(description="stop strings")] = field(default_factory=list)
    rollout_stop_token_ids: Annotated[list[int], Meta(description="stop token ids")] = field(default_factory=list)
    rollout_skip_special_tokens: Annotated[bool, Meta(description="leave special tokens out of the text")] = False
    rollout_seed: Annotated[int, Meta(description="seed of shuffling and sampling")] = 42
    max_attempts: Annotated[int, Meta(description="tries of one rollout before its group is rejected")] = 3
    rollout_deadline: Annotated[
        float, Meta(description="seconds without any progress before the run stops with a reason")
    ] = 600.0
