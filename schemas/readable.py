"""`check_readable`: whether an encoded event has the types that its readers expect, before it is in the log for ever.

MessagePack is written without a look at types: `text=None` is encoded like any text, and no reader takes it. The check
reads the bytes again, without the arrays, whose numbers our own code packed: at 1,000 tokens that is a microsecond.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, get_args, get_type_hints

import msgspec

from schemas.arrays import Array
from schemas.event import Event
from schemas.rollouts import RolloutProgressed, WeightSpan

OURS = frozenset({RolloutProgressed})
"""Events of numbers that an engine counts: nothing in them comes from a user's code, and a run has most of these."""


def check_readable(event: Event, encoded: bytes) -> None:
    """Raises msgspec.ValidationError where a field holds a value of another type than its own."""
    if type(event) not in OURS:
        _reader(type(event))(encoded)


@cache
def _reader(cls: type[Event]) -> Callable[[bytes], Any]:
    """Decodes the fields that may hold a value of a user's; the others are passed over."""
    hints, fields = get_type_hints(cls), list[Any]()
    for field in msgspec.structs.fields(cls):
        hint = hints[field.name]
        if not _is_ours(hint):
            fields.append(
                (field.name, hint) if field.required else (field.name, hint | msgspec.UnsetType, msgspec.UNSET)
            )
    checked = msgspec.defstruct(cls.__name__, fields, kw_only=True, gc=False)
    return msgspec.msgpack.Decoder(checked).decode


def _is_ours(hint: Any) -> bool:
    return hint in (Array, WeightSpan) or any(map(_is_ours, get_args(hint)))
