"""Test how a user's function may be called, which is checked before a run, and its name if it is a partial or
an object.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import PlugPointError, PlugPointMissing
from slime_events.plugins.loader import (
    accepted,
    check_call,
    count_taken,
    defined_at,
    digest_of,
    load_function,
    name_of,
    place_of,
)


def two(args: Any, sample: Any) -> None: ...


def named(args: Any, *, rollout_id: Any = None) -> None: ...


def any_named(args: Any, **more: Any) -> None: ...


async def awaited(args: Any) -> None: ...


class Made:
    """A class, and an object that is called."""

    def __init__(self, args: Any) -> None: ...

    def __call__(self, args: Any, sample: Any) -> None: ...

    @staticmethod
    def method(args: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "count", "how"),
    [
        (two, 2, {}),
        (named, 1, {"names": ("rollout_id",)}),
        (any_named, 1, {"names": ("rollout_id",)}),
        (Made, 1, {"makes": True}),
        (Made.method, 1, {}),
        (Made(None), 2, {}),
        (awaited, 1, {"awaits": True}),
        (functools.partial(two, None), 1, {}),
        (min, 7, {}),
    ],
)
def test_a_function_that_can_be_called_is_taken(function: Callable[..., Any], count: int, how: dict[str, Any]) -> None:
    check_call(function, "(args)", count, **how)


@pytest.mark.parametrize(
    ("function", "count", "how"),
    [
        (two, 1, {}),
        (two, 3, {}),
        (two, 2, {"names": ("rollout_id",)}),
        (Made, 1, {}),
        (Made, 2, {"makes": True}),
        (awaited, 1, {}),
    ],
)
def test_a_function_that_cannot_is_refused(function: Callable[..., Any], count: int, how: dict[str, Any]) -> None:
    with pytest.raises(PlugPointError):
        check_call(function, "(args)", count, **how)


def test_it_is_called_with_the_first_number_that_it_takes() -> None:
    assert count_taken(two, "", (3, 2)) == 2
    assert count_taken(lambda *every: None, "", (3, 2)) == 3
    with pytest.raises(PlugPointError):
        count_taken(two, "", (3, 1))


def test_names_that_it_takes() -> None:
    offered = ("evaluation", "rollout_id")
    taken = {function: accepted(function, offered) for function in (two, named, any_named, min)}
    assert taken == {two: [], named: ["rollout_id"], any_named: list(offered), min: []}


def test_who_it_is() -> None:
    here = f"{__name__}:"
    assert name_of(two) == name_of(functools.partial(functools.partial(two, None), None)) == f"{here}two"
    assert name_of(Made(None)) == name_of(Made) == f"{here}Made"
    assert name_of(Made.method) == f"{here}Made.method"
    assert defined_at(two) == f" ({__file__}:{two.__code__.co_firstlineno})"
    assert defined_at(functools.partial(two, None)) == defined_at(two)
    assert defined_at(min) == ""


def test_a_digest_is_of_the_code_and_of_the_name_in_it() -> None:
    @functools.wraps(two)
    def wrapped(*every: Any) -> None: ...

    assert digest_of(wrapped) == digest_of(functools.partial(two, None)) == digest_of(two)
    assert len({digest_of(function) for function in (two, named, Made.method, min, len)}) == 5
    assert digest_of(Made(None)) == digest_of(Made)
    namespace: dict[str, Any] = {}
    exec("def f(): return 1\ndef g(): return 2\ndef h(): return 1", namespace)
    without = [digest_of(namespace[name]) for name in "fgh"]
    assert len(set(without)) == 3
    again: dict[str, Any] = {}
    exec("def f(): return 1", again)
    assert digest_of(again["f"]) == without[0]


def test_the_line_that_raised_is_told() -> None:
    with pytest.raises(TypeError) as caught:
        two()  # type: ignore[call-arg]
    assert place_of(caught.value).startswith(" (test_calls.py:")
    assert place_of(caught.value).endswith("in test_the_line_that_raised_is_told)")
    assert place_of(ValueError()) == ""


def test_a_file_is_loaded_once_and_found_by_its_first_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / "own_once.py"
    file.write_text("made = []\ndef second(): return made\nfirst = 3\nthird = second\n")
    loaded = load_function("own_once.py", default_names=("first", "second", "third"), user_dir=tmp_path)
    assert loaded is load_function(f"{file}:third")
    monkeypatch.chdir(tmp_path)
    assert load_function(" own_once.py:second ") is loaded
    before = list(sys.path)
    load_function("own_once.py:second")
    assert sys.path == before
    assert sys.path.count(str(tmp_path)) == 1


def test_a_file_that_breaks_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / "own_mended.py"
    file.write_text("1 / 0\n")
    with pytest.raises(PlugPointError, match=r"\(own_mended\.py:1\)"):
        load_function(f"{file}:f")
    file.write_text("def f(): return 7\n")
    os.utime(file, (1, 1))
    assert load_function(f"{file}:f")() == 7


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("import json\n\njson.loads('')\n", "own_place.py:3"),
        ("def inner():\n    raise KeyError('x')\n\ninner()\n", "own_place.py:2"),
    ],
)
def test_the_user_s_own_line_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, place: str) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_place.py").write_text(source)
    with pytest.raises(PlugPointError) as caught:
        load_function(f"{tmp_path}/own_place.py:f")
    assert f"({place})" in str(caught.value)
    assert not isinstance(caught.value, PlugPointMissing)


@pytest.mark.parametrize("source", ["import own_nowhere_else", "from own_pack.inner import own_nothing"])
def test_a_module_that_misses_another_is_no_missing_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_asks.py").write_text(f"{source}\ndef f(): ...\n")
    with pytest.raises(PlugPointError) as caught:
        load_function("own_asks:f", user_dir=tmp_path)
    assert not isinstance(caught.value, PlugPointMissing)
    with pytest.raises(PlugPointMissing):
        load_function("own_pack.inner:f", user_dir=tmp_path)


@pytest.mark.parametrize("path", ["own_half.py.f", "own_half.py.Own.f"])
def test_half_a_file_and_half_a_module_is_neither(path: str) -> None:
    with pytest.raises(PlugPointMissing):
        load_function(path)


@pytest.mark.parametrize("name", ["nothing", "LIMIT"])
def test_what_a_module_has_not_is_told_with_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / f"own_told_{name}.py"
    file.write_text("LIMIT = 3\n")
    with pytest.raises(PlugPointMissing, match=str(file)):
        load_function(f"{file.stem}:{name}", user_dir=tmp_path)
    with pytest.raises(PlugPointMissing, match="sys"):
        load_function("sys:nothing_such")
