"""`Envelope`: an event with its writer, time and cause."""

import hashlib

import msgspec

from schemas.event import Event, type_of
from schemas.subjects import subject_of


class Envelope(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One event as it is written.

    id: derived from run, type and identity, so a retry is the same event (32 hex digits). at: UTC nanoseconds by the
    writer's clock, for people; order comes from the log alone. cause: id of the event that led to this one.
    producer: id of the worker that appends it. traceparent: W3C trace context.
    """

    id: str
    run: str
    at: int
    producer: str
    event: Event
    cause: str | None = None
    traceparent: str | None = None

    @property
    def type(self) -> str:
        """The event's tag."""
        return type_of(self.event)

    @property
    def subject(self) -> str:
        """Its subject in the log."""
        return subject_of(self.run, self.event)


def event_id(run: str, event: Event) -> str:
    """32 hex digits that depend on what the event is about, never on when or by whom it is appended."""
    key = "\x1f".join((run, type_of(event), *map(str, event.identity())))
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest()


def enclose(
    run: str, event: Event, *, at: int, producer: str, cause: str | None = None, traceparent: str | None = None
) -> Envelope:
    """An envelope around `event`. The clock is the caller's: decisions have none."""
    return Envelope(
        id=event_id(run, event), run=run, at=at, producer=producer, event=event, cause=cause, traceparent=traceparent
    )
