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
    added. about: of an event, its entity and its identity, as one text. schema: of the type. entity_of, second_of, end:
    of a type whose events are named by their first field (else entity_of is None), the parts of which the identity is
    joined: that field, another one (None: none), and what all of them end with.
    """

    prefix: str
    hashed: Callable[[], "hashlib.blake2b"]
    about: Callable[[Any], tuple[str, str]]
    schema: int
    entity_of: Callable[[Any], object] | None = None
    second_of: Callable[[Any], object] | None = None
    end: str = ""

    @classmethod
    def of(cls, run: str, kind: type[Event]) -> "Derivation":
        """Of one type in one run."""
        hashed = hashlib.blake2b(f"{run}\x1f{type_of(kind)}\x1f".encode(), digest_size=16)
        prefix = f"slime.{run}.{type_of(kind)}."
        first, *more = kind.IDENTITY or kind.__struct_fields__[:1]
        own = kind.entity is not Event.entity or kind.identity is not Event.identity
        if own or first != kind.__struct_fields__[0] or len(more) > 1:
            return cls(prefix, hashed.copy, _about, kind.SCHEMA)
        entity_of, end = attrgetter(first), f"\x1f{kind.MARK}" if kind.MARK else ""
        if not more:
            return cls(prefix, hashed.copy, _about_one(entity_of, end), kind.SCHEMA, entity_of, None, end)
        second_of = attrgetter(more[0])
        return cls(prefix, hashed.copy, _about_two(entity_of, second_of, end), kind.SCHEMA, entity_of, second_of, end)

    def id_of(self, identity: str) -> str:
        """The id of the event of this type with that identity: 32 hex digits."""
        hashed = self.hashed()
        hashed.update(identity.encode())
        return hashed.hexdigest()


def _about(event: Event) -> tuple[str, str]:
    return event.entity(), "\x1f".join(map(str, event.identity()))


def _about_one(entity_of: Callable[[Any], object], end: str) -> Callable[[Any], tuple[str, str]]:
    return lambda event: (entity := str(entity_of(event)), entity + end)


def _about_two(
    entity_of: Callable[[Any], object], second_of: Callable[[Any], object], end: str
) -> Callable[[Any], tuple[str, str]]:
    return lambda event: (entity := str(entity_of(event)), f"{entity}\x1f{second_of(event)}{end}")


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
