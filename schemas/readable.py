"""`check_readable`: check that an encoded event has the types that its readers expect, before it is appended.

The MessagePack encoder does not check types: it encodes `text=None`, which no reader accepts. The check decodes the
bytes without the arrays, whose numbers our own code packed. For 1,000 tokens it takes a microsecond.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, get_args, get_type_hints

import msgspec

from schemas.arrays import Array
from schemas.event import Event
from schemas.rollouts import RolloutProgressed, WeightSpan

OURS = frozenset({RolloutProgressed})
"""Unchecked events: the most frequent type, whose values all come from our own code."""


def check_readable(event: Event, encoded: bytes) -> None:
    """Raises msgspec.ValidationError if the value of a field does not have the field's type."""
    if type(event) not in OURS:
        _reader(type(event))(encoded)


@cache
def _reader(cls: type[Event]) -> Callable[[bytes], Any]:
    """Return a decoder of the fields that may hold a user's value; it skips the others."""
    hints, fields = get_type_hints(cls), list[Any]()
    for field in msgspec.structs.fields(cls):
        hint = hints[field.name]
        if not _is_ours(hint):
            fields.append(
                (field.name, hint) if field.required else (field.name, hint | msgspec.UnsetType, msgspec.UNSET)
            )
    checked = msgspec.defstruct(cls.__name__, fields, kw_only=True, gc=False)
    return msgspec.msgpack.Decoder(checked).decode


def _is_ours(hint: object) -> bool:
    return hint in (Array, WeightSpan) or any(map(_is_ours, get_args(hint)))
