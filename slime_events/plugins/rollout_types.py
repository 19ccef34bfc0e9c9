"""slime's results of a rollout function, `RolloutFnTrainOutput` and `RolloutFnEvalOutput`, and how one is called."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slime_events.plugins.sample import Sample

RolloutBatch = dict[str, Any]
"""What slime's trainer functions get of a step: lists by name, an entry for each sample."""


@dataclass
class RolloutFnTrainOutput:
    """samples: groups. metrics: further ones of the step."""

    samples: list[list[Sample]]
    metrics: dict[str, Any] | None = None


@dataclass
class RolloutFnEvalOutput:
    """data: by data set, its `rewards`, `truncated` and `samples`. metrics: further ones of the evaluation."""

    data: dict[str, dict[str, Any]]
    metrics: dict[str, Any] | None = None


def call_rollout_fn(fn: Callable[..., Any], *args: Any, evaluation: bool, **kwargs: Any) -> Any:
    """`fn(*args, evaluation=evaluation, **kwargs)`; a bare result (slime's older form) becomes one of the types."""
    output = fn(*args, **kwargs, evaluation=evaluation)
    if isinstance(output, RolloutFnTrainOutput | RolloutFnEvalOutput):
        return output
    return RolloutFnEvalOutput(data=output) if evaluation else RolloutFnTrainOutput(samples=output)
