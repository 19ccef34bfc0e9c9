"""Which span an event is the end of. Pure: live processes and a reader of the log get the same span, ids and all.

    group's trace:    submit ─┬─ generate ── grade     (one per sample)
                              └─ decide
                                    ⇡ link
    version's trace:                batch ── train ── publish ── activate (one per engine)

A span ends when its event was said (`at`) and begins as much earlier as the event says that the work took.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from schemas.batches import BatchSealed
from schemas.envelope import Envelope
from schemas.event import Event
from schemas.prompts import PromptSubmitted
from slime_events.core.telemetry import names
from slime_events.core.telemetry.describe import describe
from slime_events.core.telemetry.ids import (
    SpanContext,
    format_traceparent,
    parse_traceparent,
    sampled,
    span_id,
    trace_id,
)
from slime_events.core.telemetry.names import SpanName
from slime_events.core.telemetry.place import place_of
from slime_events.core.telemetry.span import Span, SpanKind


def span_of(envelope: Envelope, share: float = 1.0) -> Span | None:
    """The span that ends with this event; None for an event that ends none, or where its trace is not sampled.

    share: of group traces that are kept, 0 to 1.
    """
    place = place_of(envelope.event)
    if place is None:
        return None
    run, event = envelope.run, envelope.event
    trace = place.trace(run)
    if not place.is_sampled(trace, share):
        return None
    attributes, seconds, error = describe(event)
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
    place = place_of(event)
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
