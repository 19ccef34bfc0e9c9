"""`Envelope`: an event with its writer, time and cause."""

import hashlib
from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

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


class Derivation(NamedTuple):
    """How subject and id follow from the events of one type: made once, as a log has a million events of few types.

    prefix: of the subject, before the entity. hashed: gives a fresh hash of run and type, to which the identity is
    added. about: of an event, its entity and its identity, as one text. alone: both at once, of a type whose events are
    named by their first field.
    """

    prefix: str
    hashed: Callable[[], "hashlib.blake2b"]
    about: Callable[[Any], tuple[str, str]]
    alone: Callable[[Any], object] | None = None

    @classmethod
    def of(cls, run: str, kind: type[Event]) -> "Derivation":
        """Of one type in one run."""
        hashed = hashlib.blake2b(f"{run}\x1f{type_of(kind)}\x1f".encode(), digest_size=16)
        plain = kind.entity is Event.entity and kind.identity is Event.identity and not kind.IDENTITY
        alone = attrgetter(kind.__struct_fields__[0]) if plain else None
        return cls(f"slime.{run}.{type_of(kind)}.", hashed.copy, _about(kind), alone)

    def id_of(self, identity: str) -> str:
        """The id of the event of this type with that identity: 32 hex digits."""
        hashed = self.hashed()
        hashed.update(identity.encode())
        return hashed.hexdigest()


def _about(kind: type[Event]) -> Callable[[Any], tuple[str, str]]:
    if kind.entity is not Event.entity or kind.identity is not Event.identity:
        if kind.entity is not Event.entity:
            return lambda event: (event.entity(), "\x1f".join(map(str, event.identity())))
        entity_of = attrgetter(kind.__struct_fields__[0])
        return lambda event: (str(entity_of(event)), "\x1f".join(map(str, event.identity())))
    entity_of = attrgetter(kind.__struct_fields__[0])
    if not kind.IDENTITY:
        return lambda event: (entity := str(entity_of(event)), entity)
    identity_of = attrgetter(*kind.IDENTITY)
    if len(kind.IDENTITY) == 1:
        return lambda event: (str(entity_of(event)), str(identity_of(event)))
    return lambda event: (str(entity_of(event)), "\x1f".join(map(str, identity_of(event))))


class _Derivations(dict[type[Event], Derivation]):
    def __init__(self, run: str) -> None:
        self._run = run

    def __missing__(self, kind: type[Event]) -> Derivation:
        self[kind] = Derivation.of(self._run, kind)
        return self[kind]


@lru_cache(maxsize=64)
def derivations(run: str) -> dict[type[Event], Derivation]:
    """Of a run, by event type."""
    return _Derivations(run)


def event_id(run: str, event: Event) -> str:
    """32 hex digits that depend on what the event is about, never on when or by whom it is appended."""
    derivation = derivations(run)[type(event)]
    return derivation.id_of(derivation.about(event)[1])


def enclose(
    run: str, event: Event, *, at: int, producer: str, cause: str | None = None, traceparent: str | None = None
) -> Envelope:
    """An envelope around `event`. The clock is the caller's: decisions have none."""
    return Envelope(
        id=event_id(run, event), run=run, at=at, producer=producer, event=event, cause=cause, traceparent=traceparent
    )
