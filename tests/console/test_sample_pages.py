"""The queries by which pages of samples are read give the rows of simpler ones, with ties, nulls and cursors."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from serve_apps.http.console.rows import Order, columns_of, literal
from serve_apps.http.console.views.samples import COLUMNS, FACETS, ORDERS, chosen, page_sql, stored_page_sql

ROWS, LIMIT = 60, 7
TEXTS = ("What is 5%_of 7?", "WHAT IS a\\b?", "Straße ΑΣ ς İ", "what\nis it's", "")


@pytest.fixture(scope="module")
def samples() -> duckdb.DuckDBPyConnection:
    """Samples that are stored in another order than that of their positions, of which three share one each."""
    connection = duckdb.connect()
    numbers = ", ".join(
        f"CASE WHEN i % 5 = 0 THEN NULL WHEN i % 11 = 0 THEN 'nan'::DOUBLE ELSE i % 4 - 1.5 END AS {quoted(name)}"
        for name, has_numbers in FACETS.items() if has_numbers
    )  # fmt: skip
    given = {"position", "sample", *(name for name, has_numbers in FACETS.items() if has_numbers)}
    others = ", ".join(f"'x' || i % 3 AS {quoted(name)}" for name in (*FACETS, *COLUMNS[2:]) if name not in given)
    texts = f"[{', '.join(map(literal, TEXTS))}]"
    connection.execute(
        f"CREATE TABLE samples AS SELECT i // 3 AS position, 's' || i AS sample, {numbers}, {others}, "
        f"{texts}[1 + i % 5] AS prompt, CASE WHEN i % 7 > 0 THEN {texts}[1 + i % 4] END AS text "
        f"FROM (SELECT range AS i FROM range({ROWS})) ORDER BY hash(i)"
    )
    return connection


def quoted(name: str) -> str:
    return f'"{name}"'


def answer(samples: duckdb.DuckDBPyConnection, sql: str) -> pa.Table:
    return samples.sql(sql).to_arrow_table()


def after(order: Order, key: tuple[float | None, int, str]) -> str:
    """The rows after a row, by the definition: its key is the last one that is listed before them."""
    value, position, sample = key
    same = f'"{order.column}" IS NOT DISTINCT FROM {literal(value)}'
    beyond = f'"{order.column}" {"<" if order.descending else ">"} {literal(value)}'
    tie = f"(position, sample) > ({position}, {literal(sample)})"
    later = "false" if value is None else f"coalesce({beyond}, true)"
    return f"(({same} AND {tie}) OR {later})"


@pytest.mark.parametrize("filters", [[], ["reward:null"], ["verdict:eq:x1", "tokens:lt:1"]])
@pytest.mark.parametrize("order", [sign + name for name in ORDERS for sign in ("", "-")])
def test_each_page_has_the_rows_of_the_simple_query(
    samples: duckdb.DuckDBPyConnection, order: str, filters: list[str]
) -> None:
    by, conditions, cursor, rest, seen = Order.of(order, ORDERS), chosen(filters), "", "true", 0
    while True:
        rows = answer(samples, stored_page_sql(conditions, by, cursor, LIMIT))
        listed = columns_of(rows)
        simple = page_sql(conditions, by, cursor, LIMIT)
        defined = f"SELECT * FROM samples WHERE {conditions} AND {rest} ORDER BY {by.sql} LIMIT {LIMIT}"
        assert repr(columns_of(answer(samples, simple))) == repr(listed)  # nan is not equal to itself
        assert columns_of(answer(samples, defined))["sample"] == listed["sample"]
        seen += rows.num_rows
        if rows.num_rows < LIMIT:
            break
        value, position, sample = (listed[name][-1] for name in (by.column, "position", "sample"))
        cursor = by.cursor(listed)
        rest = after(by, (value, position, sample))  # type: ignore[arg-type]
    assert seen == answer(samples, f"SELECT 1 FROM samples WHERE {conditions}").num_rows


@pytest.mark.parametrize("text", ["what IS", "5%_", "%", "_", "a\\B", "it's", "STRASSE", "ß", "ας", "i", "", "\n"])
def test_a_text_is_found_as_it_is_in_any_case(samples: duckdb.DuckDBPyConnection, text: str) -> None:
    needle = literal(text.lower())
    simple = f"contains(lower(prompt), {needle}) OR contains(lower(text), {needle})"
    found, wanted = (
        columns_of(answer(samples, f"SELECT sample FROM samples WHERE {where} ORDER BY sample"))
        for where in (chosen([], text), simple if text else "true")
    )
    assert found == wanted
