"""Which span an event ends. Pure: live processes and a reader of the log get the same span, ids included.

    group's trace:    submit ─┬─ generate ── grade     (one per sample)
                              └─ decide
                                    ⇡ link
    version's trace:                batch ── train ── publish ── activate (one per engine)

A span ends when its event was appended (`at`) and begins as many seconds earlier as the event reports for the work.
"""

from collections.abc import Iterable, Iterator
from operator import attrgetter

from schemas.batches import BatchSealed
from schemas.envelope import Envelope
from schemas.event import Event
from schemas.groups import GroupAccepted, GroupRejected
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import RolloutCompleted, RolloutFailed
from schemas.steps import StepCommitted
from schemas.weights import WeightsActivated, WeightsPublished
from slime_events.core.telemetry import names
from slime_events.core.telemetry.names import SpanName
from slime_events.core.telemetry.span import (
    Attribute,
    Span,
    SpanContext,
    SpanKind,
    format_traceparent,
    parse_traceparent,
    sampled,
    span_id,
    trace_id,
    version_trace_id,
)


class SpanPlace:
    """Where in which trace a span is. key: unique in its run; parent: key of the parent span. group or version: the
    owner of the trace.
    """

    __slots__ = ("group", "key", "name", "parent", "version")

    def __init__(
        self, name: SpanName, key: str, parent: str | None = None, *, group: str = "", version: int | None = None
    ) -> None:
        self.name, self.key, self.parent = name, f"{name}/{key}", parent
        self.group, self.version = group, version

    def trace(self, run: str) -> int:
        """The trace of its group, or of its weight version."""
        return trace_id(run, self.group) if self.version is None else version_trace_id(run, self.version)

    def is_sampled(self, trace: int, share: float) -> bool:
        """Groups by share; versions always, since the trace of each sampled group leads to one."""
        return share > 0 and (self.version is not None or sampled(trace, share))


def span_place_of(event: Event) -> SpanPlace | None:
    """None for an event that ends no span."""
    match event:
        case PromptSubmitted(group=group):
            return SpanPlace(SpanName.SUBMIT, group, group=group)
        case RolloutCompleted(sample=sample, group=group):
            return SpanPlace(SpanName.GENERATE, sample, f"{SpanName.SUBMIT}/{group}", group=group)
        case RolloutFailed(sample=sample, group=group, attempt=attempt):
            return SpanPlace(SpanName.GENERATE, f"{sample}/{attempt}", f"{SpanName.SUBMIT}/{group}", group=group)
        case RewardAssigned(sample=sample, group=group) | RewardFailed(sample=sample, group=group):
            return SpanPlace(SpanName.GRADE, sample, f"{SpanName.GENERATE}/{sample}", group=group)
        case GroupAccepted(group=group) | GroupRejected(group=group):
            return SpanPlace(SpanName.DECIDE, group, f"{SpanName.SUBMIT}/{group}", group=group)
        case BatchSealed(step=step):
            return SpanPlace(SpanName.BATCH, str(step), version=step + 1)
        case StepCommitted(step=step, version=version):
            return SpanPlace(SpanName.TRAIN, str(step), f"{SpanName.BATCH}/{step}", version=version)
        case WeightsPublished(version=version, parent=parent):
            train = f"{SpanName.TRAIN}/{version - 1}" if parent is not None else None
            return SpanPlace(SpanName.PUBLISH, str(version), train, version=version)
        case WeightsActivated(version=version, engine=engine):
            return SpanPlace(SpanName.ACTIVATE, f"{version}/{engine}", f"{SpanName.PUBLISH}/{version}", version=version)
        case _:
            return None


_SAMPLE = {names.RL_GROUP: "group", names.RL_SAMPLE: "sample"}
_ATTEMPT = {**_SAMPLE, names.RL_ATTEMPT: "attempt", names.RL_ENGINE: "engine"}
_DECISION = {names.RL_GROUP: "group", names.RL_FILTER: "filter"}
_WEIGHTS = {names.RL_WEIGHTS_VERSION: "version"}
_FIELDS: dict[type[Event], dict[str, str]] = {
    PromptSubmitted: {
        names.RL_GROUP: "group",
        names.RL_DATASET: "dataset",
        names.RL_PURPOSE: "purpose.value",
        names.RL_SOURCE: "source.path",
        names.GEN_AI_USAGE_INPUT_TOKENS: "tokens.n",
    },
    RolloutCompleted: {
        **_ATTEMPT,
        names.RL_QUEUED_SECONDS: "timings.queued",
        names.RL_UPDATING_SECONDS: "timings.updating",
        names.GEN_AI_RESPONSE_ID: "sample",
        names.GEN_AI_USAGE_INPUT_TOKENS: "prompt_length",
        names.GEN_AI_USAGE_OUTPUT_TOKENS: "length",
    },
    RolloutFailed: _ATTEMPT,
    RewardAssigned: {
        **_SAMPLE,
        names.RL_REWARD: "value",
        names.GEN_AI_EVALUATION_NAME: "grader",
        names.GEN_AI_EVALUATION_SCORE_VALUE: "value",
    },
    RewardFailed: {**_SAMPLE, names.GEN_AI_EVALUATION_NAME: "grader"},
    GroupAccepted: _DECISION,
    GroupRejected: _DECISION,
    BatchSealed: {names.RL_STEP: "step"},
    StepCommitted: {
        **_WEIGHTS,
        names.RL_STEP: "step",
        names.RL_WEIGHTS_PARENT: "parent_version",
        names.RL_WEIGHTS_DIGEST: "weights_digest",
        names.RL_SAMPLES: "samples",
        names.RL_TOKENS: "tokens",
    },
    WeightsPublished: {**_WEIGHTS, names.RL_WEIGHTS_DIGEST: "digest", names.RL_WEIGHTS_BYTES: "bytes"},
    WeightsActivated: {
        **_WEIGHTS,
        names.RL_WEIGHTS_DIGEST: "digest",
        names.RL_WEIGHTS_LAG_SECONDS: "lag",
        names.RL_ENGINE: "engine",
    },
}
"""Attributes that are a field of the event, by type: attribute to the field's path."""
_READERS = {
    kind: [(attribute, attrgetter(path)) for attribute, path in fields.items()] for kind, fields in _FIELDS.items()
}


def _attributes(event: Event) -> dict[str, Attribute]:
    """The event's own fields, and what is computed from them."""
    found: dict[str, Attribute] = {attribute: read(event) for attribute, read in _READERS[type(event)]}
    if isinstance(event, RolloutCompleted):
        found[names.RL_WEIGHTS_VERSIONS] = sorted({span.version for span in event.spans})
        found[names.GEN_AI_RESPONSE_FINISH_REASONS] = [event.stop.value]
    if isinstance(event, RolloutCompleted | RolloutFailed):
        found[names.GEN_AI_OPERATION_NAME], found[names.GEN_AI_PROVIDER_NAME] = "text_completion", "sglang"
    elif isinstance(event, GroupAccepted | GroupRejected):
        found[names.RL_ACCEPTED] = isinstance(event, GroupAccepted)
        if event.reason:
            found[names.RL_REASON] = event.reason
    elif isinstance(event, StepCommitted):
        found.update((names.RL_METRIC + name, value) for name, value in event.metrics.items())
    if isinstance(event, GroupAccepted | GroupRejected | BatchSealed):
        found[names.RL_SAMPLES] = len(event.samples)
        rewards = event.raw_rewards if isinstance(event, BatchSealed) else event.rewards
        if rewards:
            found[names.RL_REWARD_MEAN] = sum(rewards) / len(rewards)
    return found


def _seconds(event: Event) -> float:
    """How long the work took that the event ends."""
    match event:
        case RolloutCompleted(timings=timings):
            return timings.generating
        case RewardAssigned(seconds=seconds) | RewardFailed(seconds=seconds) | WeightsActivated(seconds=seconds):
            return seconds
        case StepCommitted(seconds=parts):
            return sum(parts.values())
        case _:
            return 0.0


def span_of(envelope: Envelope, share: float = 1.0) -> Span | None:
    """The span that ends with this event; None for an event that ends none, or whose trace is not sampled.

    share: of group traces that are kept, 0 to 1.
    """
    place = span_place_of(envelope.event)
    if place is None:
        return None
    run, event = envelope.run, envelope.event
    trace = place.trace(run)
    if not place.is_sampled(trace, share):
        return None
    attributes = _attributes(event)
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
        start_ns=envelope.at - round(_seconds(event) * 1e9),
        end_ns=envelope.at,
        parent=span_id(run, place.parent) if place.parent else None,
        attributes=attributes,
        links=_links(envelope, trace, share),
        kind=SpanKind.PRODUCER,
        error=f"{event.kind.value}: {event.message}" if isinstance(event, RolloutFailed | RewardFailed) else None,
    )


def traceparent_of(run: str, event: Event, share: float = 1.0) -> str | None:
    """The context of the span that an event ends, as its envelope carries it; None where it ends none."""
    place = span_place_of(event)
    if place is None:
        return None
    trace = place.trace(run)
    return format_traceparent(SpanContext(trace, span_id(run, place.key)), place.is_sampled(trace, share))


def spans_of_log(envelopes: Iterable[Envelope], share: float = 1.0) -> Iterator[Span]:
    """All spans of a log: those that live processes recorded, with the same ids and times."""
    return (span for span in (span_of(envelope, share) for envelope in envelopes) if span is not None)


def _links(envelope: Envelope, trace: int, share: float) -> tuple[SpanContext, ...]:
    """A batch links to the decisions on its groups; a prompt from outside to its sender's own trace."""
    run, event = envelope.run, envelope.event
    if isinstance(event, BatchSealed):
        decisions = (SpanContext(trace_id(run, g), span_id(run, f"{SpanName.DECIDE}/{g}")) for g in event.groups)
        return tuple(context for context in decisions if sampled(context.trace, share))
    if isinstance(event, PromptSubmitted):
        sender = parse_traceparent(envelope.traceparent)
        return (sender,) if sender is not None and sender.trace != trace else ()
    return ()
