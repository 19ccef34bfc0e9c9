"""slime's results of a rollout function: `RolloutFnTrainOutput` and `RolloutFnEvalOutput`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from schemas.doc import doc
from slime_events.plugins.sample import Sample

RolloutBatch = dict[str, Any]
"""A step as slime's trainer functions see it: lists by name, an entry for each sample."""


@dataclass
class RolloutFnTrainOutput:
    """Result of a training step's rollouts."""

    samples: Annotated[list[list[Sample]], doc("Groups of samples.")]
    metrics: Annotated[dict[str, Any] | None, doc("Additional metrics of the step.")] = None


@dataclass
class RolloutFnEvalOutput:
    """Result of an evaluation."""

    data: Annotated[dict[str, dict[str, Any]], doc("Data set to its `rewards`, `truncated` and `samples`.")]
    metrics: Annotated[dict[str, Any] | None, doc("Additional metrics of the evaluation.")] = None


def call_rollout_fn(
    fn: Callable[..., Any], *args: object, evaluation: bool, **kwargs: object
) -> RolloutFnTrainOutput | RolloutFnEvalOutput:
    """Call `fn(*args, evaluation=evaluation, **kwargs)`. A bare result (slime's older form) is wrapped."""
    output = fn(*args, **kwargs, evaluation=evaluation)
    if isinstance(output, RolloutFnTrainOutput | RolloutFnEvalOutput):
        return output
    return RolloutFnEvalOutput(data=output) if evaluation else RolloutFnTrainOutput(samples=output)
