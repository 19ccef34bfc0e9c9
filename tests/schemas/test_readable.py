"""Nothing is written that no reader can read: a value of a wrong type, half a character, an object of a user's."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args, get_type_hints

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.arrays import Array
from schemas.codec import decode, encode
from schemas.envelope import enclose
from schemas.errors import UnwritableEvent
from schemas.event import Event, type_of
from schemas.readable import OURS
from schemas.registry import EVENT_CLASSES
from schemas.rollouts import WeightSpan
from tests.schemas.strategies import struct


class Text(str):
    """A text that is more than one."""


class Number(int):
    """A number that is more than one."""


WRONG: tuple[Any, ...] = (
    None, 1.5, 7, True, b"x", "x", "\ud83d", [1], {"a": 1}, {1: 2}, (), np.int64(3), np.float32(1), np.ones(2),
    Text("x"), Number(3), object(), 2**70, float("nan"), msgspec.UNSET, iter(()),
)  # fmt: skip
"""Whatever a user's function may leave where something else belongs."""


hints_of = cache(get_type_hints)


def _is_array(hint: Any) -> bool:
    return hint in (Array, WeightSpan) or any(map(_is_array, get_args(hint)))


CHECKED = [cls for cls in EVENT_CLASSES if cls not in OURS]


@pytest.mark.parametrize("cls", CHECKED, ids=type_of)
@settings(max_examples=60)
@given(data=st.data())
def test_what_is_written_can_be_read(cls: type[Event], data: st.DataObject) -> None:
    """Refuse an event with a wrong value in any field, or write something that can be read."""
    event = data.draw(struct(cls))
    hints = hints_of(cls)
    field = data.draw(st.sampled_from([name for name in cls.__struct_fields__ if not _is_array(hints[name])]))
    changed = msgspec.structs.replace(event, **{field: data.draw(st.sampled_from(WRONG))})
    try:
        written = encode(_around(changed, event))
    except UnwritableEvent:
        return
    assert type_of(decode(written).event) == type_of(cls)


@pytest.mark.parametrize("cls", CHECKED, ids=type_of)
@settings(max_examples=3)
@given(data=st.data())
def test_a_wrong_value_in_a_plain_field_is_refused(cls: type[Event], data: st.DataObject) -> None:
    """Not one of them is passed over."""
    event = data.draw(struct(cls))
    hints = hints_of(cls)
    for name in cls.__struct_fields__:
        if hints[name] in (str, int, float, bool):
            with pytest.raises(UnwritableEvent, match=type_of(cls).replace(".", r"\.")):
                encode(_around(msgspec.structs.replace(event, **{name: [None]}), event))


def _around(event: Event, whole: Event) -> Any:
    """The event in the envelope of a whole one, whose id can be derived."""
    return msgspec.structs.replace(enclose("r", whole, at=1, producer="p"), event=event)
