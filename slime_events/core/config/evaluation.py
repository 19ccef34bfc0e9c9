"""What is evaluated, and when."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from slime_events.core.config.base import Settings


class EvalSettings(Settings, frozen=True, kw_only=True):
    """Named data sets, every `eval_interval` versions, on the same engines as training.

    eval_on `version`: all answers are made by the version that is evaluated, whatever engines train on meanwhile. Runs
    recorded before this setting existed have none; it means `latest` there.
    """

    eval_interval: Annotated[int | None, Meta(description="evaluate every N versions")] = None
    eval_prompt_data: Annotated[list[str], Meta(description="pairs: name path name path ...")] = field(
        default_factory=list
    )
    eval_on: Annotated[
        Literal["version", "latest"] | None,
        Meta(description="weights that make an evaluation's answers: those that it is of, or what engines run by then"),
    ] = None
    skip_eval_before_train: Annotated[bool, Meta(description="no evaluation of the first version")] = False
    eval_input_key: Annotated[str | None, Meta(description="prompt field; default: input-key")] = None
    eval_label_key: Annotated[str | None, Meta(description="label field; default: label-key")] = None
    n_samples_per_eval_prompt: Annotated[int, Meta(description="samples per question")] = 1
    eval_temperature: Annotated[float | None, Meta(description="default: the rollout's")] = None
    eval_top_p: Annotated[float | None, Meta(description="default: the rollout's")] = None
    eval_top_k: Annotated[int | None, Meta(description="default: the rollout's")] = None
    eval_max_response_len: Annotated[int | None, Meta(description="default: the rollout's")] = None
