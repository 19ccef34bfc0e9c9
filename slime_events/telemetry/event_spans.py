"""Which span an event is the end of. Pure: live processes and a reader of the log get the same span, ids and all.

    group's trace:    submit ─┬─ generate ── grade     (one per sample)
                              └─ decide
                                    ⇡ link
    version's trace:                batch ── train ── publish ── activate (one per engine)

A span ends when its event was said (`at`) and begins as much earlier as the event says that the work took.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from schemas.batches import BatchSealed
from schemas.envelope import Envelope
from schemas.event import Event
from schemas.groups import GroupAccepted, GroupRejected
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import RolloutCompleted, RolloutFailed
from schemas.steps import StepCommitted
from schemas.weights import WeightsActivated, WeightsPublished
from slime_events.telemetry import names
from slime_events.telemetry.ids import (
    SpanContext,
    format_traceparent,
    parse_traceparent,
    sampled,
    span_id,
    trace_id,
    version_trace_id,
)
from slime_events.telemetry.names import SpanName
from slime_events.telemetry.span import Attribute, Span, SpanKind

Attributes = dict[str, Attribute]


class _Place:
    """Where in which trace an event's span is: made from the event alone."""

    __slots__ = ("group", "key", "name", "parent", "version")

    def __init__(
        self, name: SpanName, key: str, parent: str | None = None, *, group: str = "", version: int | None = None
    ) -> None:
        self.name, self.key, self.parent = name, f"{name}/{key}", parent
        self.group, self.version = group, version

    def trace(self, run: str) -> int:
        return trace_id(run, self.group) if self.version is None else version_trace_id(run, self.version)

    def is_sampled(self, trace: int, share: float) -> bool:
        """Groups by share; versions always, since every sampled group's trace leads to one."""
        return share > 0 and (self.version is not None or sampled(trace, share))


def span_of(envelope: Envelope, share: float = 1.0) -> Span | None:
    """The span that ends with this event; None for an event that ends none, or where its trace is not sampled.

    share: of group traces that are kept, 0 to 1.
    """
    place = _place_of(envelope.event)
    if place is None:
        return None
    run, event = envelope.run, envelope.event
    trace = place.trace(run)
    if not place.is_sampled(trace, share):
        return None
    attributes, seconds, error = _DESCRIBE[type(event)](event)
    attributes[names.RL_RUN] = run
    attributes[names.RL_EVENT_TYPE] = envelope.type
    attributes[names.MESSAGING_SYSTEM] = "nats"
    attributes[names.MESSAGING_OPERATION_TYPE] = "send"
    attributes[names.MESSAGING_DESTINATION_NAME] = envelope.subject
    attributes[names.MESSAGING_MESSAGE_ID] = envelope.id
    attributes[names.MESSAGING_CLIENT_ID] = envelope.producer
    return Span(
        name=place.name,
        trace=trace,
        span=span_id(run, place.key),
        start_ns=envelope.at - round(seconds * 1e9),
        end_ns=envelope.at,
        parent=span_id(run, place.parent) if place.parent else None,
        attributes=attributes,
        links=_links(envelope, trace, share),
        kind=SpanKind.PRODUCER,
        error=error,
    )


def traceparent_of(run: str, event: Event, share: float = 1.0) -> str | None:
    """What an event's envelope carries: the context of the span that it ends; None where it ends none."""
    place = _place_of(event)
    if place is None:
        return None
    trace = place.trace(run)
    return format_traceparent(SpanContext(trace, span_id(run, place.key)), place.is_sampled(trace, share))


def spans_of_log(envelopes: Iterable[Envelope], share: float = 1.0) -> Iterator[Span]:
    """All spans of a log: what the live processes recorded, with the same ids and times."""
    return (span for span in (span_of(envelope, share) for envelope in envelopes) if span is not None)


def _links(envelope: Envelope, trace: int, share: float) -> tuple[SpanContext, ...]:
    """A batch to the decisions on its groups; a prompt from outside to its sender's own trace."""
    run, event = envelope.run, envelope.event
    if isinstance(event, BatchSealed):
        decisions = (SpanContext(trace_id(run, g), span_id(run, f"{SpanName.DECIDE}/{g}")) for g in event.groups)
        return tuple(context for context in decisions if sampled(context.trace, share))
    if isinstance(event, PromptSubmitted):
        sender = parse_traceparent(envelope.traceparent)
        return (sender,) if sender is not None and sender.trace != trace else ()
    return ()


def _place_of(event: Event) -> _Place | None:
    match event:
        case PromptSubmitted(group=group):
            return _Place(SpanName.SUBMIT, group, group=group)
        case RolloutCompleted(sample=sample, group=group):
            return _Place(SpanName.GENERATE, sample, f"{SpanName.SUBMIT}/{group}", group=group)
        case RolloutFailed(sample=sample, group=group, attempt=attempt):
            return _Place(SpanName.GENERATE, f"{sample}/{attempt}", f"{SpanName.SUBMIT}/{group}", group=group)
        case RewardAssigned(sample=sample, group=group) | RewardFailed(sample=sample, group=group):
            return _Place(SpanName.GRADE, sample, f"{SpanName.GENERATE}/{sample}", group=group)
        case GroupAccepted(group=group) | GroupRejected(group=group):
            return _Place(SpanName.DECIDE, group, f"{SpanName.SUBMIT}/{group}", group=group)
        case BatchSealed(step=step):
            return _Place(SpanName.BATCH, str(step), version=step + 1)
        case StepCommitted(step=step, version=version):
            return _Place(SpanName.TRAIN, str(step), f"{SpanName.BATCH}/{step}", version=version)
        case WeightsPublished(version=version, parent=parent):
            train = f"{SpanName.TRAIN}/{version - 1}" if parent is not None else None
            return _Place(SpanName.PUBLISH, str(version), train, version=version)
        case WeightsActivated(version=version, engine=engine):
            return _Place(SpanName.ACTIVATE, f"{version}/{engine}", f"{SpanName.PUBLISH}/{version}", version=version)
        case _:
            return None


_Description = tuple[Attributes, float, str | None]
"""Attributes, seconds that it took, and the error if it failed."""


def _submit(event: PromptSubmitted) -> _Description:
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


def _generate(event: RolloutCompleted) -> _Description:
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


def _generate_failed(event: RolloutFailed) -> _Description:
    attributes: Attributes = {
        names.RL_GROUP: event.group,
        names.RL_SAMPLE: event.sample,
        names.RL_ATTEMPT: event.attempt,
        names.RL_ENGINE: event.engine,
        names.GEN_AI_OPERATION_NAME: "text_completion",
        names.GEN_AI_PROVIDER_NAME: "sglang",
    }
    return attributes, 0.0, f"{event.kind.value}: {event.message}"


def _grade(event: RewardAssigned) -> _Description:
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


def _grade_failed(event: RewardFailed) -> _Description:
    attributes: Attributes = {
        names.RL_GROUP: event.group,
        names.RL_SAMPLE: event.sample,
        names.GEN_AI_EVALUATION_NAME: event.grader,
    }
    return attributes, event.seconds, f"{event.kind.value}: {event.message}"


def _decide(event: GroupAccepted | GroupRejected) -> _Description:
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


def _batch(event: BatchSealed) -> _Description:
    attributes: Attributes = {names.RL_STEP: event.step, names.RL_SAMPLES: len(event.samples)}
    if event.raw_rewards:
        attributes[names.RL_REWARD_MEAN] = sum(event.raw_rewards) / len(event.raw_rewards)
    return attributes, 0.0, None


def _train(event: StepCommitted) -> _Description:
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


def _publish(event: WeightsPublished) -> _Description:
    return (
        {
            names.RL_WEIGHTS_VERSION: event.version,
            names.RL_WEIGHTS_DIGEST: event.digest,
            names.RL_WEIGHTS_BYTES: event.bytes,
        },
        0.0,
        None,
    )


def _activate(event: WeightsActivated) -> _Description:
    attributes: Attributes = {
        names.RL_WEIGHTS_VERSION: event.version,
        names.RL_WEIGHTS_DIGEST: event.digest,
        names.RL_WEIGHTS_LAG_SECONDS: event.lag,
        names.RL_ENGINE: event.engine,
    }
    return attributes, event.seconds, None


_DESCRIBE: dict[type[Event], Callable[[Any], _Description]] = {
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
