"""Short forms of the frequent events: the fields that a fold looks at, under the same names, and no arrays.

A rule reads an event and its short form alike, so there is one set of rules. What is rare is read whole.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, Union

import msgspec

from schemas.batches import BatchSealed
from schemas.codec import decode
from schemas.envelope import Envelope
from schemas.errors import DamagedEvent, SchemaError
from schemas.event import Event, type_of
from schemas.groups import GroupAccepted
from schemas.registry import EVENT_CLASSES
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted, RolloutProgressed, RolloutRequested, StopReason, WeightSpan
from schemas.turns import TurnRecorded


class Length(msgspec.Struct, frozen=True, gc=False):
    """An array without its numbers."""

    n: int


class Requested(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag=type_of(RolloutRequested)):
    """Of rollout.requested."""

    sample: str
    group: str
    min_version: int = 0
    attempt: int = 0


class Progressed(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag=type_of(RolloutProgressed)):
    """Of rollout.progressed."""

    sample: str
    start: int
    tokens: Length
    spans: tuple[WeightSpan, ...]
    engine: str


class Completed(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag=type_of(RolloutCompleted)):
    """Of rollout.completed."""

    sample: str
    group: str
    attempt: int
    length: int
    stop: StopReason
    text: str
    spans: tuple[WeightSpan, ...]
    digest: str
    rollout: str = ""
    prompt_text: str = ""


class Rewarded(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag=type_of(RewardAssigned)):
    """Of reward.assigned."""

    sample: str
    group: str
    value: float


class Turn(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag=type_of(TurnRecorded)):
    """Of turn.recorded."""

    sample: str


class Accepted(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag=type_of(GroupAccepted)):
    """Of group.accepted."""

    group: str
    rewards: tuple[float, ...]


class Sealed(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag=type_of(BatchSealed)):
    """Of batch.sealed."""

    step: int
    groups: tuple[str, ...]
    digest: str


SHORT: dict[type[Event], type] = {
    RolloutRequested: Requested,
    RolloutProgressed: Progressed,
    RolloutCompleted: Completed,
    RewardAssigned: Rewarded,
    TurnRecorded: Turn,
}
SHORT_DECISIONS: dict[type[Event], type] = {GroupAccepted: Accepted, BatchSealed: Sealed}
"""Without what they were decided on, which no state holds, and which takes longer to read than all else of them."""
_SCHEMA = statistics.mode(kind.SCHEMA for kind in EVENT_CLASSES)
"""The schema version that most have. Those of another are read one by one."""


def _decoder(short: Mapping[type[Event], type]) -> msgspec.msgpack.Decoder[Any]:
    """Of arrays of events, in these short forms where there is one."""
    kinds = tuple(short.get(kind, kind) for kind in EVENT_CLASSES if kind.SCHEMA == _SCHEMA)
    fields = [("schema", Literal[_SCHEMA]), ("at", int), ("event", Union[kinds])]  # noqa: UP007
    return msgspec.msgpack.Decoder(list[msgspec.defstruct("Wire", fields, frozen=True, gc=False)])  # type: ignore[misc]


class Told(Protocol):
    """An event or its short form. at: UTC nanoseconds."""

    @property
    def at(self) -> int: ...

    @property
    def event(self) -> Any: ...


_wires, _whole_decisions = _decoder(SHORT | SHORT_DECISIONS), _decoder(SHORT)
_raws = msgspec.msgpack.Decoder(list[msgspec.Raw])
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_short(arrays: Iterable[bytes], first: int, *, decisions: bool = False) -> Iterator[Sequence[Told]]:
    """The events in MessagePack arrays of them, each array decoded when it is come to. first: position of the first.
    decisions: those whole, for who asks what they were decided on.

    Raises a SchemaError that names the position.
    """
    decoder = _whole_decisions if decisions else _wires
    for array in arrays:
        try:
            found: Sequence[Told] = decoder.decode(array)
        except _UNREADABLE:  # of one that needs an upcaster, or an error of its own
            found = _one_by_one(array, first)
        yield found
        first += len(found)


def _one_by_one(array: bytes, first: int) -> Sequence[Told]:
    try:
        raws = _raws.decode(array)
    except _UNREADABLE as error:
        raise DamagedEvent(f"not events, from position {first} on: {error}") from error
    return [_read(bytes(raw), position) for position, raw in enumerate(raws, first)]


def _read(data: bytes, position: int) -> Envelope:
    try:
        return decode(data)
    except SchemaError as error:
        raise type(error)(f"position {position}: {error}") from error
