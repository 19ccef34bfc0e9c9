"""Derive the span that an event ends. Pure: live processes and a reader of the log get the same span, ids included.

A span ends when its event was appended (`at`). It begins earlier by the seconds that the event reports for the work.
"""

from schemas.batches import BatchSealed
from schemas.envelope import Envelope
from schemas.event import Event
from schemas.ids import group_of
from schemas.prompts import PromptSubmitted
from schemas.turns import TurnRecorded
from slime_events.core.telemetry.event_attributes import attributes_of
from slime_events.core.telemetry.span import (
    Span,
    SpanContext,
    format_traceparent,
    parse_traceparent,
    sampled,
    span_id,
    trace_id,
)
from slime_events.core.telemetry.span_place import error_of, span_place_of


def span_of(envelope: Envelope, share: float = 1.0) -> Span | None:
    """Return the span that ends with this event; None if the event ends no span, or the span is not kept.

    share: share of group traces that are kept, 0 to 1. Above 0, failures in the other traces are kept too.
    """
    run, event = envelope.run, envelope.event
    place = span_place_of(event)
    if place is None:
        return None
    trace = place.trace(run)
    if not place.is_kept(trace, share, event):
        return None
    return Span(
        name=place.key.partition("/")[0],
        trace=trace,
        span=span_id(run, place.key),
        start_ns=envelope.at - round(place.seconds * 1e9),
        end_ns=envelope.at,
        parent=span_id(run, place.parent) if place.parent else None,
        attributes=attributes_of(envelope),
        links=_links(envelope, trace, share),
        error=error_of(event),
    )


def traceparent_of(run: str, event: Event, share: float = 1.0) -> str | None:
    """Return the context of the span that an event ends, for its envelope; None if it ends no span."""
    place = span_place_of(event)
    if place is None:
        return None
    trace = place.trace(run)
    return format_traceparent(SpanContext(trace, span_id(run, place.key)), place.is_kept(trace, share, event))


def _links(envelope: Envelope, trace: int, share: float) -> tuple[SpanContext, ...]:
    """Return links: from a batch to the decisions on its groups, from an agent's turn to the generation that an engine
    made for it (in a trace of its own), and from a prompt to its sender's trace.
    """
    run, event = envelope.run, envelope.event
    if isinstance(event, BatchSealed):
        decisions = (SpanContext(trace_id(run, g), span_id(run, f"decide/{g}")) for g in event.groups)
        return tuple(context for context in decisions if sampled(context.trace, share))
    if isinstance(event, TurnRecorded) and event.agent is not None:
        call = event.agent.call
        generation = SpanContext(trace_id(run, group_of(call)), span_id(run, f"generate/{call}"))
        return (generation,) if sampled(generation.trace, share) else ()
    if isinstance(event, PromptSubmitted):
        sender = parse_traceparent(envelope.traceparent)
        return (sender,) if sender is not None and sender.trace != trace else ()
    return ()
