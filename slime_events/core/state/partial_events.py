"""Partial forms of frequent events: only the fields that a fold reads, with the same names and without arrays.

A rule reads an event and its partial form alike, so there is a single set of rules. Rare events are decoded whole.
"""

import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, Union

import msgspec

from schemas.arrays import Array
from schemas.batches import BatchSealed
from schemas.codec import decode
from schemas.envelope import Envelope
from schemas.errors import DamagedEvent, SchemaError
from schemas.event import Event, type_of
from schemas.groups import GroupAccepted
from schemas.registry import EVENT_CLASSES
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted, RolloutProgressed, RolloutRequested
from schemas.turns import TurnRecorded
from storage.event_block import Part


class ArrayLength(msgspec.Struct, frozen=True, gc=False):
    """An array without its numbers."""

    n: int


def _partial(kind: type[Event], *names: str) -> type[msgspec.Struct]:
    """Return the event's struct with only these fields, under the same tag."""
    hints = typing.get_type_hints(kind)
    types = {name: ArrayLength if hints[name] is Array else hints[name] for name in names}
    defaults = {field.name: field.default for field in msgspec.structs.fields(kind)}
    fields = [(n, h) if defaults[n] is msgspec.NODEFAULT else (n, h, defaults[n]) for n, h in types.items()]
    fields.sort(key=len)  # fields with defaults come last
    return msgspec.defstruct(
        f"Partial{kind.__name__}", fields, frozen=True, gc=False, tag_field="type", tag=type_of(kind)
    )


Requested = _partial(RolloutRequested, "sample", "group", "min_version", "attempt")
Completed = _partial(
    *(RolloutCompleted, "sample", "group", "attempt", "length", "stop", "spans", "digest", "rollout"),
)
Rewarded = _partial(RewardAssigned, "sample", "group", "value")
PARTIAL_EVENTS: dict[type[Event], type] = {
    RolloutRequested: Requested,
    RolloutProgressed: _partial(RolloutProgressed, "sample", "start", "tokens", "spans", "engine"),
    RolloutCompleted: Completed,
    RewardAssigned: Rewarded,
    TurnRecorded: _partial(TurnRecorded, "sample", "index"),
}
PARTIAL_DECISIONS: dict[type[Event], type] = {
    GroupAccepted: _partial(GroupAccepted, "group", "rewards"),
    BatchSealed: _partial(BatchSealed, "step", "groups", "digest"),
}
"""Decisions without their inputs, which no state has and which take longest to decode."""
PARTIAL_SINCE: dict[type[Event], int] = {RolloutRequested: 1}
"""Oldest schema in which the fields of a partial form mean what they mean today; by default the newest schema.

Events of older schemas are decoded individually.
"""


def _decoder(partial: Mapping[type[Event], type]) -> msgspec.msgpack.Decoder[Any]:
    """Return a decoder of arrays of events, into their partial forms if they have some."""
    wires = []
    for schema in sorted({kind.SCHEMA for kind in EVENT_CLASSES}):
        kinds = tuple(
            partial.get(kind, kind)
            for kind in EVENT_CLASSES
            if PARTIAL_SINCE.get(kind, kind.SCHEMA) <= schema <= kind.SCHEMA
        )
        fields = [("at", int), ("event", Union[kinds])]  # noqa: UP007
        wires.append(msgspec.defstruct(f"Wire{schema}", fields, frozen=True, gc=False, tag_field="schema", tag=schema))
    return msgspec.msgpack.Decoder(list[Union[tuple(wires)]])  # type: ignore[misc]  # noqa: UP007


class FoldedEvent(Protocol):
    """An event or its partial form. at: UTC nanoseconds."""

    @property
    def at(self) -> int: ...

    @property
    def event(self) -> Any: ...


_all_partial, _whole_decisions = _decoder(PARTIAL_EVENTS | PARTIAL_DECISIONS), _decoder(PARTIAL_EVENTS)
_raws = msgspec.msgpack.Decoder(list[msgspec.Raw])
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_partial_events(
    parts: Iterable[Part], *, decisions: bool = False
) -> Iterator[tuple[int, Sequence[FoldedEvent]]]:
    """Yield the events of a block, one decoded part at a time, with the position of its first event.

    decisions: decode decisions whole, with their inputs. Raises a SchemaError that names the position.
    """
    decoder = _whole_decisions if decisions else _all_partial
    for first, events in parts:
        if not isinstance(events, bytes):
            yield first, events
            continue
        try:
            yield first, decoder.decode(events)
        except _UNREADABLE:  # an event needs an upcaster, or has its own error
            yield first, _one_by_one(events, first)


def _one_by_one(array: bytes, first: int) -> Sequence[FoldedEvent]:
    try:
        raws = _raws.decode(array)
    except _UNREADABLE as error:
        raise DamagedEvent(f"the records from position {first} on are not events: {error}") from error
    return [_decode(bytes(raw), position) for position, raw in enumerate(raws, first)]


def _decode(data: bytes, position: int) -> Envelope:
    try:
        return decode(data)
    except SchemaError as error:
        raise type(error)(f"position {position}: {error}") from error
