"""*Samples*: rows of samples by page, and the histograms of their columns, under filters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Response

from schemas.doc import doc
from serve_apps.http.console.open_runs import OpenRun, OpenRuns
from serve_apps.http.console.rows import MOST_ROWS, Order, Value, columns_of, condition, literal
from serve_apps.http.console.text_search import text_condition
from serve_apps.http.console.view import ROOT, AnswerSource, ConsoleView, RunName, answered, documented, query_source

FACETS = {
    "reward": True,
    "tokens": True,
    "step": True,
    "staleness": True,
    "normalised_reward": True,
    "seconds": True,
    "verdict": False,
    "stop_reason": False,
    "status": False,
    "failure": False,
    "purpose": False,
    "grader": False,
    "dataset": False,
    "engine": False,
}
"""Columns with a histogram, and whether they have numbers."""
FILTERS = {**FACETS, "sample": False, "group_id": False, "label": False, "index": True, "trained_version": True}
ORDERS = ("position", *(name for name, has_numbers in FACETS.items() if has_numbers))
BINS = 20
"""Most bars of a histogram of numbers."""
MOST_VALUES = 12
"""Most bars of a histogram of texts."""
TEXT = 300
"""Characters of a text in a row; a rollout's page has all of it."""
COLUMNS = (
    *("position", "sample", "group_id", "step", "reward", "normalised_reward", "tokens", "staleness", "seconds"),
    *("stop_reason", "status", "verdict", "label"),
)

_NAMES = ", ".join(f'"{name}"' for name in COLUMNS)
_LISTED = f"SELECT {_NAMES}, left(prompt, {TEXT}) AS prompt, left(text, {TEXT}) AS text FROM samples"

Filters = Annotated[list[str], Query(alias="filter", description="column:eq:value, column:ge:number, column:lt:number")]
Text = Annotated[str, Query(alias="text", description="text that prompt or response contains, in any case")]
Where = Annotated[str, Query(description="SQL condition over the table `samples`")]


class SamplePage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of samples."""

    columns: Annotated[dict[str, list[Value]], doc("an array per column [rows]; `prompt` and `text` are shortened")]
    next: Annotated[str | None, doc("cursor of the next page; None on the last one")]
    source: Annotated[AnswerSource, doc("query for the page")]


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """A bar of a histogram."""

    low: Annotated[Value, doc("the value; for a bar of numbers its lower end, which it includes")]
    high: Annotated[float | None, doc("upper end, which it excludes; None for a bar of one value")]
    count: Annotated[int, doc("number of samples under all filters")]


class Facet(msgspec.Struct, frozen=True, kw_only=True):
    """The histogram of a column."""

    column: Annotated[str, doc("column of `samples`")]
    has_numbers: Annotated[bool, doc("whether its values are numbers")]
    values: Annotated[int, doc("number of different values")]
    bars: Annotated[tuple[Bar, ...], doc("its bars; of texts the most frequent")]


class Facets(msgspec.Struct, frozen=True, kw_only=True):
    """Histograms of the samples under all filters."""

    total: Annotated[int, doc("number of samples under all filters")]
    facets: Annotated[tuple[Facet, ...], doc("a histogram per column with more than one value")]
    source: Annotated[AnswerSource, doc("query for the samples that are counted")]


def chosen(filters: list[str], matches: str = "", where: str = "") -> str:
    """Return the conditions of a request as SQL. matches: the condition of its text. Raises BadQuery."""
    conditions = [condition(term, FILTERS) for term in filters]
    if matches:
        conditions.append(matches)
    if where:
        conditions.append(f"(\n{where}\n)")  # a comment at its end stays within its line
    return " AND ".join(conditions) or "true"


def page_sql(conditions: str, order: Order, cursor: str, limit: int) -> str:
    """Return the query for one page. Raises BadQuery."""
    return f"{_LISTED} WHERE {_after(conditions, order, cursor)} ORDER BY {order.sql} LIMIT {limit}"


def stored_page_sql(conditions: str, order: Order, cursor: str, limit: int) -> str:
    """Return a faster query for the same rows, for a stored `samples`: it sorts by few columns, and reads the others of
    the page's rows only. Raises BadQuery.
    """
    keys = f"SELECT rowid FROM samples WHERE {_after(conditions, order, cursor)} ORDER BY {order.sql} LIMIT {limit}"
    return f"{_LISTED} WHERE rowid IN ({keys}) ORDER BY {order.sql} LIMIT {limit}"


def _after(conditions: str, order: Order, cursor: str) -> str:
    return f"{conditions} AND {order.after(cursor)}" if cursor else conditions


def _add(router: APIRouter, runs: OpenRuns) -> None:
    @router.get(f"{ROOT}/samples", **documented(SamplePage, "Get a page of samples"))
    async def samples(
        run: RunName,
        filters: Filters = [],  # noqa: B006 FastAPI copies it
        text: Text = "",
        where: Where = "",
        order: Annotated[str, Query(description="column to sort by; with - before it the largest first")] = "position",
        cursor: Annotated[str, Query(description="`next` of the page before")] = "",
        limit: Annotated[int, Query(ge=1, le=MOST_ROWS, description="rows of the page")] = 100,
    ) -> Response:
        by = Order.of(order, ORDERS)
        sql = page_sql(chosen(filters, text_condition(text), where), by, cursor, limit)

        def stored_sql(matches: str) -> str:
            return stored_page_sql(chosen(filters, matches, where), by, cursor, limit)

        async with runs.use(run) as opened:
            position, rows = await opened.rows_with(text, stored_sql)
            opened.prepare_search()
            columns = columns_of(rows)
            more = by.cursor(columns) if rows.num_rows == limit else None
            return answered(SamplePage(columns=columns, next=more, source=query_source(opened.argument, sql, position)))

    @router.get(f"{ROOT}/facets", **documented(Facets, "Get histograms of samples"))
    async def facets(run: RunName, filters: Filters = [], text: Text = "", where: Where = "") -> Response:  # noqa: B006
        async with runs.use(run) as opened:
            return answered(await read_facets(opened, text, lambda matches: chosen(filters, matches, where)))


async def read_facets(opened: OpenRun, text: str, conditions: Callable[[str], str]) -> Facets:
    """Return the histograms of some samples. conditions: of the samples, from the condition for those with the text.

    Raises BadQuery, and the log's errors.
    """
    parts = ", ".join(f'count(DISTINCT "{name}") AS "{name}"' for name in FACETS)
    ends = ", ".join(f'min("{name}"), max("{name}")' for name, has_numbers in FACETS.items() if has_numbers)
    sql = f"SELECT count(*) AS total, {parts}, [{ends}] AS ends FROM samples WHERE "
    position, rows = await opened.rows_with(text, lambda matches: sql + conditions(matches))
    (head,) = rows.to_pylist()
    ends = iter(head["ends"])
    facets = []
    for name, has_numbers in FACETS.items():
        low, high = (next(ends), next(ends)) if has_numbers else (None, None)
        if head[name] > 1:
            bars = await _bars(opened, text, conditions, name, head[name], low, high)
            facets.append(Facet(column=name, has_numbers=has_numbers, values=head[name], bars=bars))
    plain = f"SELECT * FROM samples WHERE {conditions(text_condition(text))}"
    source = query_source(opened.argument, plain, position)
    return Facets(total=head["total"], facets=tuple(facets), source=source)


async def _bars(
    opened: OpenRun,
    text: str,
    conditions: Callable[[str], str],
    name: str,
    values: int,
    low: float | None,
    high: float | None,
) -> tuple[Bar, ...]:
    column = f'"{name}"'
    wide = low is not None and high is not None and values > BINS
    width = (high - low) / BINS if wide and low is not None and high is not None else 0.0
    if width:
        value = f"least(floor(({column} - {literal(low)}) / {literal(width)}), {BINS - 1})"
        order = "1"
    else:
        value, order = column, "1" if low is not None else "2 DESC, 1"
    most = BINS if low is not None else MOST_VALUES
    _, rows = await opened.rows_with(
        text,
        lambda matches: (
            f"SELECT {value} AS low, count(*) AS count FROM samples WHERE {conditions(matches)} "
            f"AND {column} IS NOT NULL GROUP BY 1 ORDER BY {order} LIMIT {most}"
        ),
    )
    if not width or low is None or high is None:
        return tuple(Bar(low=row["low"], high=None, count=row["count"]) for row in rows.to_pylist())
    return tuple(
        Bar(
            low=low + row["low"] * width,
            high=low + (row["low"] + 1) * width if row["low"] < BINS - 1 else math.nextafter(high, math.inf),
            count=row["count"],
        )
        for row in rows.to_pylist()
    )


VIEW = ConsoleView("samples", (SamplePage, Facets), _add)
