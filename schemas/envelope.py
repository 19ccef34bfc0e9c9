"""`Envelope`: an event with its writer, time and cause."""

import hashlib
from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, NamedTuple

import msgspec

from schemas.doc import doc
from schemas.event import Event, type_of
from schemas.subjects import of_type, subject_of


class Envelope(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An event with its writer, time and cause."""

    id: Annotated[str, doc("32 hex digits, derived from run, type and identity: a retry is the same event.")]
    run: Annotated[str, doc("Name of the run.")]
    at: Annotated[int, doc("Writer's clock, ns of Unix time (UTC). For people: the log alone defines the order.")]
    producer: Annotated[str, doc("Id of the worker that appends it.")]
    event: Annotated[Event, doc("The event.")]
    cause: Annotated[str | None, doc("Id of the event that led to this one.")] = None
    traceparent: Annotated[str | None, doc("W3C trace context.")] = None

    @property
    def type(self) -> str:
        """Tag of the event."""
        return type_of(self.event)

    @property
    def subject(self) -> str:
        """Subject of the event in the log."""
        return subject_of(self.run, self.event)


class Derivation(NamedTuple):
    """Rules that derive subject and id from an event of one type. Built once per type: a log has millions of events.

    If the first field names the events, the identity is the join of `entity_of`, `second_of` and `end`.
    """

    prefix: Annotated[str, doc("Subject before the entity.")]
    hashed: Annotated[Callable[[], "hashlib.blake2b"], doc("Returns a new hash of run and type.")]
    about: Annotated[Callable[[Any], tuple[str, str]], doc("Returns an event's entity and joined identity.")]
    schema: Annotated[int, doc("Schema version of the type.")]
    entity_of: Annotated[Callable[[Any], object] | None, doc("Returns the first field; None if it is no name.")] = None
    second_of: Annotated[Callable[[Any], object] | None, doc("Returns the second field of the identity.")] = None
    end: Annotated[str, doc("Constant end of the identity.")] = ""

    @classmethod
    def of(cls, run: str, kind: type[Event]) -> "Derivation":
        """Return the rules for one type in one run."""
        hashed = hashlib.blake2b(f"{run}\x1f{type_of(kind)}\x1f".encode(), digest_size=16)
        prefix = of_type(run, type_of(kind), "")
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
        """Return the id (32 hex digits) of the event of this type with that identity."""
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
    """Return a run's derivations by event type."""
    return _Derivations(run)


def event_id(run: str, event: Event) -> str:
    """Return 32 hex digits that depend on the event's identity, never on when or by whom it is appended."""
    derivation = derivations(run)[type(event)]
    return derivation.id_of(derivation.about(event)[1])


def enclose(
    run: str, event: Event, *, at: int, producer: str, cause: str | None = None, traceparent: str | None = None
) -> Envelope:
    """Return an envelope around `event`. The caller reads the clock, because decisions must not."""
    return Envelope(
        id=event_id(run, event), run=run, at=at, producer=producer, event=event, cause=cause, traceparent=traceparent
    )
