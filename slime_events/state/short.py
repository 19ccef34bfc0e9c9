"""Short forms of the frequent events: the fields that a fold looks at, under the same names, and no arrays.

A rule reads an event and its short form alike, so there is one set of rules. What is rare is read whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Union

import msgspec

from schemas.codec import decode
from schemas.envelope import Envelope
from schemas.errors import SchemaError
from schemas.event import Event, type_of
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


class Rewarded(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag=type_of(RewardAssigned)):
    """Of reward.assigned."""

    sample: str
    value: float


class Turn(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag=type_of(TurnRecorded)):
    """Of turn.recorded."""

    sample: str


SHORT: dict[type[Event], type] = {
    RolloutRequested: Requested,
    RolloutProgressed: Progressed,
    RolloutCompleted: Completed,
    RewardAssigned: Rewarded,
    TurnRecorded: Turn,
}
_KINDS = tuple(SHORT.get(kind, kind) for kind in EVENT_CLASSES)
_CURRENT = {(SHORT.get(kind, kind), kind.SCHEMA) for kind in EVENT_CLASSES}


class _Wire(msgspec.Struct, frozen=True, gc=False):
    schema: int
    at: int
    event: Union[_KINDS]  # type: ignore[valid-type]  # noqa: UP007


class Told(Protocol):
    """An event or its short form. at: UTC nanoseconds."""

    @property
    def at(self) -> int: ...

    @property
    def event(self) -> Any: ...


_wires = msgspec.msgpack.Decoder(list[_Wire])
_raws = msgspec.msgpack.Decoder(list[msgspec.Raw])


def read_short(records: bytes, first: int) -> Sequence[Told]:
    """The events in a MessagePack array of stored records. first: position of the first.

    Raises a SchemaError that names the position.
    """
    try:
        wires = _wires.decode(records)
        if {(type(wire.event), wire.schema) for wire in wires} <= _CURRENT:
            return wires
    except msgspec.DecodeError:
        pass  # one that needs an upcaster or an error of its own: one by one
    return [_read(bytes(raw), position) for position, raw in enumerate(_raws.decode(records), first)]


def _read(data: bytes, position: int) -> Envelope:
    try:
        return decode(data)
    except SchemaError as error:
        raise type(error)(f"position {position}: {error}") from error
