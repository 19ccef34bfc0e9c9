"""Test how a user's return value becomes a value that an event may hold: any type, and limited in size."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from slime_events.plugins.plain_values import CUT, DEPTH, PLAIN_BYTES, plain


@pytest.mark.parametrize(
    ("value", "as_it_is"),
    [
        (True, True),
        (None, None),
        (2**63 - 1, 2**63 - 1),
        (-(2**63), -(2**63)),
        (2**63, repr(2**63)),
        (-(2**63) - 1, repr(-(2**63) - 1)),
        (0.5, 0.5),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        ((1, {2}, frozenset({3})), [1, [2], [3]]),
        ({1: "a", "b": None}, {"1": "a", "b": None}),
        (np.array([[1, 2]]), [[1, 2]]),
        (np.float32(0.5), 0.5),
        ("a\ud800", "a\ufffd"),
        (b"a", "b'a'"),
    ],
)
def test_each_kind_of_value(value: Any, as_it_is: Any) -> None:
    result = plain(value)
    assert (result, type(result)) == (as_it_is, type(as_it_is))


@pytest.mark.parametrize(
    ("value", "room", "left"),
    [
        ([1] * 3, 28, [1, 1, 1]),
        ([1] * 3, 20, [1, 1, 1]),
        ([1] * 3, 19, [1, 1, f"{CUT} (2 of 3 values)"]),
        ([0.5] * 3, 10, [0.5, f"{CUT} (1 of 3 values)"]),
        ([0.5] * 3, 19, [0.5, 0.5, f"{CUT} (2 of 3 values)"]),
        ([0.5] * 3, 20, [0.5, 0.5, 0.5]),
        ([True] * 3, 3, [True, True, f"{CUT} (2 of 3 values)"]),
        ([1], 1, [f"{CUT} (0 of 1 values)"]),
        ({"ab": 1, "c": 2}, 13, {"ab": 1, "c": 2}),
        ({"ab": 1, "c": 2}, 12, {"ab": 1, CUT: "1 of 2 entries"}),
        (["a" * 9, 1], 11, ["a" * 9, f"{CUT} (1 of 2 values)"]),
        (["a" * 9, 1], 12, ["a" * 9, 1]),
        (["é" * 2, 1], 10, ["é" * 2, 1]),
        (["é" * 4, 1], 26, ["é" * 4, 1]),
    ],
)
def test_what_is_too_large_keeps_its_beginning_and_says_so(value: Any, room: int, left: Any) -> None:
    assert plain(value, room=room) == left


@pytest.mark.parametrize(("text", "room", "kept"), [("a" * 60, 61, 60), ("a" * 60, 60, 59), ("é" * 60, 240, 59)])
def test_a_text_has_the_room_that_is_left(text: str, room: int, kept: int) -> None:
    result = plain(text, room=room)
    assert (result == text, len(result)) == (kept == len(text), kept)


def test_without_a_limit_of_its_own_it_has_all_the_room_and_depth_of_an_event() -> None:
    text = "a" * (PLAIN_BYTES - 1)
    assert plain(text) == text
    assert plain(text + "a") != text + "a"
    value: Any = 1
    for _ in range(DEPTH):
        value = [value]
    assert plain(value) == value
    assert plain([value]) != [value]


@pytest.mark.parametrize(
    ("value", "levels"),
    [
        ([1], 1),
        ({"a": 1}, 1),
        (({1},), 2),
        ([{"a": [1]}], 3),
        ({"a": {"b": 1}}, 2),
        (np.array([1]), 2),
        (np.array(1), 1),
    ],
)
def test_what_is_too_deep_is_told_as_a_text(value: Any, levels: int) -> None:
    whole = plain(value, levels)
    assert plain(value, levels) == plain(value)
    assert isinstance(plain(value, 0), str)
    assert plain(value, levels - 1) != whole


def test_a_list_is_made_of_an_array_only_where_it_has_room() -> None:
    class Array:
        def __init__(self, nbytes: object) -> None:
            self.nbytes = nbytes

        def tolist(self) -> list[int]:
            return [7]

    assert plain(Array(8 * 99), room=100) == plain(Array("many"), room=100) == [7]
    assert isinstance(plain(Array(8 * 99 + 1), room=100), str)
    assert isinstance(plain([True, Array(1)], room=2)[-1], str)


def test_what_does_not_say_its_size_is_a_list_as_far_as_there_is_room() -> None:
    class Unsized:
        def tolist(self) -> list[int]:
            return [7]

    assert [plain([Unsized()], room=room) for room in (2, 4)] == [[[f"{CUT} (0 of 1 values)"]], [[7]]]


def test_a_list_that_grows_while_it_is_read_has_an_end() -> None:
    class Grows(list[Any]):
        def __iter__(self) -> Any:
            while True:
                yield 1

    assert plain(Grows([0, 0])) == [1, 1]
