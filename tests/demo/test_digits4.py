"""The task: every question once, exact labels, nothing on both sides of the hold-out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_events.app.demo import digits4
from slime_events.app.demo.digits4 import QUESTIONS, Question, question, take, write_data
from tools.demo_base import worked_answer

numbers = st.integers(0, QUESTIONS - 1)


def test_the_example() -> None:
    question = Question((8, -5, -1, 2))
    assert question.text == "8-5-1+2"
    assert question.answer == "4"
    assert worked_answer(question) == "<think>8-5=3;3-1=2;2+2=4</think>4"


@given(numbers)
def test_text_has_the_label_as_its_value(number: int) -> None:
    text = question(number)
    assert re.fullmatch(r"[1-9]([+-][1-9]){3}", text.text)
    assert sum(int(term) for term in re.findall(r"[+-]?\d", text.text)) == int(text.answer)


@given(numbers)
def test_worked_answer_adds_up(number: int) -> None:
    steps, answer = re.fullmatch(r"<think>(.*)</think>(.*)", worked_answer(question(number))).groups()  # type: ignore[union-attr]
    for step in steps.split(";"):
        left, right = step.split("=")
        assert sum(int(term) for term in re.findall(r"[+-]?\d+", left)) == int(right)
    assert answer == right == question(number).answer


def test_every_question_is_there_once_and_a_fiftieth_is_held_out() -> None:
    texts = {question(number).text for number in range(QUESTIONS)}
    held_out = sum(question(number).held_out for number in range(QUESTIONS))
    assert len(texts) == QUESTIONS == 52_488
    assert 0.8 < held_out / (QUESTIONS / digits4.HELD_OUT_ONE_IN) < 1.2


def test_written_sides_are_disjoint_and_the_same_again(tmp_path: Path) -> None:
    first = [path.read_bytes() for path in write_data(tmp_path / "a", seed=3, train=500, held_out=128)]
    again = [path.read_bytes() for path in write_data(tmp_path / "b", seed=3, train=500, held_out=128)]
    other = [path.read_bytes() for path in write_data(tmp_path / "c", seed=4, train=500, held_out=128)]
    assert first == again != other
    train, evaluation = ([json.loads(line) for line in data.splitlines()] for data in first)
    asked_in = [{row["messages"][0]["content"] for row in rows} for rows in (train, evaluation)]
    assert [len(texts) for texts in asked_in] == [500, 128]
    assert not asked_in[0] & asked_in[1]
    assert train[0].keys() == {"messages", "label"}


def test_more_than_there_are_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"only \d+ held-out questions"):
        take(2000, 0, held_out=True)
    with pytest.raises(IndexError):
        question(QUESTIONS)
