"""Test what a sample carries to its grader through the log: which values may, how deep, and how much of them."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import pytest

from schemas.errors import PlugPointError
from slime_events.plugins.sample import carried


class Words(str):
    """A text of a user's own type."""


class Level(enum.IntEnum):
    HIGH = 3


class Share(float):
    """A number of a user's own type."""


@pytest.mark.parametrize(
    ("value", "as_it_is"),
    [
        (True, True),
        (Words("a"), "a"),
        (Level.HIGH, 3),
        (Share(0.5), 0.5),
        ((1, (2,)), [1, [2]]),
        (np.int32(4), 4),
        (np.array([[1, 2]]), [[1, 2]]),
        ("a\ud800", "a\ufffd"),
        ({Words("k"): 1}, {"k": 1}),
    ],
)
def test_other_types_are_carried_as_what_they_stand_for(value: Any, as_it_is: Any) -> None:
    result = carried(value, "x")
    assert (result, type(result)) == (as_it_is, type(as_it_is))
    assert [type(key) for key in result] == [type(key) for key in as_it_is] if isinstance(result, dict) else True


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, {1: 2}, {3}, object(), b"a", np.float64])
def test_what_the_log_has_no_place_for_is_refused(value: Any) -> None:
    with pytest.raises(PlugPointError):
        carried(value, "x")


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [0, {3}]}, "sample.x['a'][1] is set"),
        ([0, {"a": {1: 2}}], "sample.x[1]['a'] is a dict"),
        ({"a": 1, 2: 3}, "sample.x is a dict"),
    ],
)
def test_the_place_of_what_is_refused_is_named(value: Any, place: str) -> None:
    with pytest.raises(PlugPointError) as caught:
        carried(value, "sample.x")
    assert str(caught.value).startswith(place)


@pytest.mark.parametrize(
    ("value", "levels"),
    [(1, 0), ([1], 1), ({"a": {"b": 1}}, 2), (([1],), 2), (np.array([1]), 2), (np.array(1), 1)],
)
def test_it_is_so_many_levels_deep(value: Any, levels: int) -> None:
    carried(value, "x", levels)
    if levels:
        with pytest.raises(PlugPointError):
            carried(value, "x", levels - 1)


def test_without_a_limit_of_its_own_it_is_64_deep() -> None:
    value: Any = 1
    for _ in range(64):
        value = [value]
    carried(value, "x")
    with pytest.raises(PlugPointError):
        carried([value], "x")


@pytest.mark.parametrize(
    ("value", "room"),
    [("abcd", 5), ([1, 2, 3], 4), ({"ab": "c"}, 5), ({"": {}}, 2), (np.zeros(8), 10), (np.zeros((2, 8)), 20)],
)
def test_it_takes_so_much_room(value: Any, room: int) -> None:
    carried(value, "x", room=room)
    with pytest.raises(PlugPointError):
        carried(value, "x", room=room - 1)


def test_without_a_limit_of_its_own_it_takes_four_megabytes() -> None:
    text = "a" * (4 * 1024 * 1024 - 1)
    assert carried(text, "x") == text
    with pytest.raises(PlugPointError):
        carried(text + "a", "x")


def test_neither_a_cycle_nor_a_large_array_is_followed() -> None:
    class Large:
        nbytes = 8 * 101

        def tolist(self) -> Any:
            raise AssertionError("a list was made of it")

    loop: dict[str, Any] = {}
    loop["own"] = loop
    for value in (loop, Large()):
        with pytest.raises(PlugPointError):
            carried(value, "x", 10**6 if value is not loop else 64, 100)
