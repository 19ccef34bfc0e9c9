"""`describe`: what a span says of the event that it ends with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from schemas.batches import BatchSealed
from schemas.event import Event
from schemas.groups import GroupAccepted, GroupRejected
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import RolloutCompleted, RolloutFailed
from schemas.steps import StepCommitted
from schemas.weights import WeightsActivated, WeightsPublished
from slime_events.core.telemetry import names
from slime_events.core.telemetry.span import Attribute

Attributes = dict[str, Attribute]
Description = tuple[Attributes, float, str | None]
"""Attributes, seconds that it took, and the error if it failed."""


def describe(event: Event) -> Description:
    """Of an event that ends a span (`place_of`)."""
    return _DESCRIBE[type(event)](event)


def _submit(event: PromptSubmitted) -> Description:
    return (
        {
            names.RL_GROUP: event.group,
            names.RL_DATASET: event.dataset,
            names.RL_PURPOSE: event.purpose.value,
            names.RL_SOURCE: event.source.path,
            names.GEN_AI_USAGE_INPUT_TOKENS: event.tokens.n,
        },
        0.0,
        None,
    )


def _generate(event: RolloutCompleted) -> Description:
    return (
        {
            names.RL_GROUP: event.group,
            names.RL_SAMPLE: event.sample,
            names.RL_ATTEMPT: event.attempt,
            names.RL_ENGINE: event.engine,
            names.RL_WEIGHTS_VERSIONS: sorted({span.version for span in event.spans}),
            names.RL_QUEUED_SECONDS: event.timings.queued,
            names.RL_UPDATING_SECONDS: event.timings.updating,
            names.GEN_AI_OPERATION_NAME: "text_completion",
            names.GEN_AI_PROVIDER_NAME: "sglang",
            names.GEN_AI_RESPONSE_ID: event.sample,
            names.GEN_AI_RESPONSE_FINISH_REASONS: [event.stop.value],
            names.GEN_AI_USAGE_INPUT_TOKENS: event.prompt_length,
            names.GEN_AI_USAGE_OUTPUT_TOKENS: event.length,
        },
        event.timings.generating,
        None,
    )


def _generate_failed(event: RolloutFailed) -> Description:
    attributes: Attributes = {
        names.RL_GROUP: event.group,
        names.RL_SAMPLE: event.sample,
        names.RL_ATTEMPT: event.attempt,
        names.RL_ENGINE: event.engine,
        names.GEN_AI_OPERATION_NAME: "text_completion",
        names.GEN_AI_PROVIDER_NAME: "sglang",
    }
    return attributes, 0.0, f"{event.kind.value}: {event.message}"


def _grade(event: RewardAssigned) -> Description:
    return (
        {
            names.RL_GROUP: event.group,
            names.RL_SAMPLE: event.sample,
            names.RL_REWARD: event.value,
            names.GEN_AI_EVALUATION_NAME: event.grader,
            names.GEN_AI_EVALUATION_SCORE_VALUE: event.value,
        },
        event.seconds,
        None,
    )


def _grade_failed(event: RewardFailed) -> Description:
    attributes: Attributes = {
        names.RL_GROUP: event.group,
        names.RL_SAMPLE: event.sample,
        names.GEN_AI_EVALUATION_NAME: event.grader,
    }
    return attributes, event.seconds, f"{event.kind.value}: {event.message}"


def _decide(event: GroupAccepted | GroupRejected) -> Description:
    attributes: Attributes = {
        names.RL_GROUP: event.group,
        names.RL_ACCEPTED: isinstance(event, GroupAccepted),
        names.RL_FILTER: event.filter,
        names.RL_SAMPLES: len(event.samples),
    }
    if event.rewards:
        attributes[names.RL_REWARD_MEAN] = sum(event.rewards) / len(event.rewards)
    if event.reason:
        attributes[names.RL_REASON] = event.reason
    return attributes, 0.0, None


def _batch(event: BatchSealed) -> Description:
    attributes: Attributes = {names.RL_STEP: event.step, names.RL_SAMPLES: len(event.samples)}
    if event.raw_rewards:
        attributes[names.RL_REWARD_MEAN] = sum(event.raw_rewards) / len(event.raw_rewards)
    return attributes, 0.0, None


def _train(event: StepCommitted) -> Description:
    attributes: Attributes = {
        names.RL_STEP: event.step,
        names.RL_WEIGHTS_VERSION: event.version,
        names.RL_WEIGHTS_PARENT: event.parent_version,
        names.RL_WEIGHTS_DIGEST: event.weights_digest,
        names.RL_SAMPLES: event.samples,
        names.RL_TOKENS: event.tokens,
    }
    attributes.update((names.RL_METRIC + name, value) for name, value in event.metrics.items())
    return attributes, sum(event.seconds.values()), None


def _publish(event: WeightsPublished) -> Description:
    return (
        {
            names.RL_WEIGHTS_VERSION: event.version,
            names.RL_WEIGHTS_DIGEST: event.digest,
            names.RL_WEIGHTS_BYTES: event.bytes,
        },
        0.0,
        None,
    )


def _activate(event: WeightsActivated) -> Description:
    attributes: Attributes = {
        names.RL_WEIGHTS_VERSION: event.version,
        names.RL_WEIGHTS_DIGEST: event.digest,
        names.RL_WEIGHTS_LAG_SECONDS: event.lag,
        names.RL_ENGINE: event.engine,
    }
    return attributes, event.seconds, None


_DESCRIBE: dict[type[Event], Callable[[Any], Description]] = {
    PromptSubmitted: _submit,
    RolloutCompleted: _generate,
    RolloutFailed: _generate_failed,
    RewardAssigned: _grade,
    RewardFailed: _grade_failed,
    GroupAccepted: _decide,
    GroupRejected: _decide,
    BatchSealed: _batch,
    StepCommitted: _train,
    WeightsPublished: _publish,
    WeightsActivated: _activate,
}
