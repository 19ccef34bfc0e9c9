"""Any values: what JSON can say is carried as it is, and whatever a function returns, an event can hold."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from slime_events.plugins.plain_values import plain
from slime_events.plugins.sample import carried

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(PLAIN)
def test_what_json_can_say_is_carried_as_it_is(value: Any) -> None:
    assert json.dumps(carried(value, "x")) == json.dumps(value)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=4)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner) | st.dictionaries(st.integers() | st.text(), inner) | st.tuples(inner),
    max_leaves=12,
)


@given(VALUES, st.integers(0, 200))
def test_whatever_it_is_json_holds_it_in_the_room(value: Any, room: int) -> None:
    text = json.dumps(plain(value, room=room), allow_nan=False)
    assert json.loads(text) == plain(value, room=room)
    small = plain(["a" * 50] * 50, room=room)
    assert sum(len(value_) for value_ in small) <= room + 50
