"""The queries by which pages of samples are read give the rows of simpler ones, with ties, nulls and cursors."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from serve_apps.http.console import text_search
from serve_apps.http.console.rows import Order, Value, columns_of, literal
from serve_apps.http.console.text_search import FOUND, TextSearch, text_condition
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


SEARCHED = [
    "what IS",
    "5%_",
    "%",
    "_",
    "a\\B",
    "it's",
    "STRASSE",
    "ß",
    "ας",
    "i",
    "\n",
    "nowhere",
    "7?",
    "k",
    "what\ni",
]


@pytest.mark.parametrize("text", [*SEARCHED, ""])
def test_a_text_is_found_as_it_is_in_any_case(samples: duckdb.DuckDBPyConnection, text: str) -> None:
    needle = literal(text.lower())
    simple = f"contains(lower(prompt), {needle}) OR contains(lower(text), {needle})" if text else "true"
    assert with_text(samples, chosen([], text_condition(text))) == with_text(samples, simple)


def with_text(samples: duckdb.DuckDBPyConnection, where: str) -> list[Value]:
    return columns_of(answer(samples, f"SELECT sample FROM samples WHERE {where} ORDER BY sample"))["sample"]


@pytest.mark.parametrize("text", SEARCHED)
@pytest.mark.parametrize(("most_found", "most_bytes"), [(100, 10_000), (5, 10_000), (100, 10)])
def test_a_search_finds_what_a_scan_finds(
    samples: duckdb.DuckDBPyConnection, text: str, most_found: int, most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_search, "MOST_FOUND", most_found)
    monkeypatch.setattr(text_search, "MOST_BYTES", most_bytes)
    search, wanted = TextSearch(), with_text(samples, text_condition(text))
    for _ in range(2):  # the second answer is kept
        cursor = samples.cursor()
        condition = search.matching(cursor, text)
        assert with_text(cursor, condition) == wanted
        assert (FOUND in condition) == (most_bytes == 10_000 and len(wanted) <= most_found)


def test_few_texts_are_kept(samples: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_search, "KEPT", 2)
    search = TextSearch()
    for text in ("what IS", "ß", "what IS", "nowhere", "5%_", "what IS"):
        cursor = samples.cursor()
        assert with_text(cursor, search.matching(cursor, text)) == with_text(samples, text_condition(text))
