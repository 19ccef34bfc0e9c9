"""What is evaluated, and when."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from slime_events.config.base import Settings


class EvalSettings(Settings, frozen=True, kw_only=True):
    """Named data sets, every `eval_interval` versions, on the same engines, without holding the loop."""

    eval_interval: Annotated[int | None, Meta(description="evaluate every N versions")] = None
    eval_prompt_data: Annotated[list[str], Meta(description="pairs: name path name path ...")] = field(
        default_factory=list
    )
    skip_eval_before_train: Annotated[bool, Meta(description="no evaluation of the first version")] = False
    eval_input_key: Annotated[str | None, Meta(description="prompt field; default: input-key")] = None
    eval_label_key: Annotated[str | None, Meta(description="label field; default: label-key")] = None
    n_samples_per_eval_prompt: Annotated[int, Meta(description="samples per question")] = 1
    eval_temperature: Annotated[float | None, Meta(description="default: the rollout's")] = None
    eval_top_p: Annotated[float | None, Meta(description="default: the rollout's")] = None
    eval_top_k: Annotated[int | None, Meta(description="default: the rollout's")] = None
    eval_max_response_len: Annotated[int | None, Meta(description="default: the rollout's")] = None
