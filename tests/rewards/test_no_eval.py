"""A prompt's metadata is read by the scorers of `reasoning_gym`, and never run."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_events.plugins.rewards.no_eval import read
from slime_events.plugins.rewards.registry import built_in
from slime_events.plugins.sample import Sample


@pytest.fixture(scope="module")
def reasoning_gym() -> ModuleType:
    """The package, whose import takes a second: not at the collection of tests."""
    module: ModuleType = pytest.importorskip("reasoning_gym")
    return module


def graded(entry: dict[str, Any], answer: str) -> float:
    response = f"<answer>{answer}</answer>"
    return float(built_in("reasoning_gym").function(None, Sample(response=response, metadata={"entry": entry})))


@pytest.mark.usefixtures("reasoning_gym")
@pytest.mark.parametrize(
    ("name", "field"),
    [("number_sorting", "answer"), ("bitwise_arithmetic", "problem"), ("bitwise_arithmetic", "answer")],
)
def test_code_in_an_entry_is_not_run(tmp_path: Path, name: str, field: str) -> None:
    trace = tmp_path / "run"
    code = f"__import__('pathlib').Path({str(trace)!r}).touch()"
    entry = {"question": "q", "answer": "0x1", "metadata": {"source_dataset": name, "problem": "0x1"}}
    (entry if field in entry else entry["metadata"])[field] = code  # type: ignore[index]
    with contextlib.suppress(ValueError):  # ungradable
        assert graded(entry, "[1]") < 1
    assert not trace.exists()


@pytest.mark.parametrize(
    "name", ["number_sorting", "bitwise_arithmetic", "basic_arithmetic", "n_queens", "spiral_matrix"]
)
def test_right_answers_are_right_as_ever(name: str, reasoning_gym: ModuleType) -> None:
    for entry in reasoning_gym.create_dataset(name, size=5, seed=1):
        assert graded(entry, entry["answer"]) == 1.0


@pytest.mark.parametrize(
    "text", ["1 << 10**10", "(1).__class__", "f(1)", "[x for x in y]", "9" * 9 + "**9", "'a' * 99999"]
)
def test_what_is_no_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        read(text)


@given(st.recursive(st.integers(0, 1 << 32), lambda few: st.tuples(few, st.sampled_from("+-*&|^"), few), max_leaves=8))
def test_arithmetic_is_pythons(tree: Any) -> None:
    def text(node: Any) -> str:
        return hex(node) if isinstance(node, int) else f"({text(node[0])} {node[1]} {text(node[2])})"

    assert read(text(tree)) == eval(text(tree))
