"""*Query*: the rows of any SELECT over the tables and detectors of a run, which it only reads."""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Response

from schemas.doc import doc
from serve_apps.http.console.open_runs import OpenRuns
from serve_apps.http.console.rows import Value
from serve_apps.http.console.view import ROOT, AnswerSource, ConsoleView, RunName, answered, documented, query_source

MOST = 500
"""Most rows of an answer."""
TEXT = 2000
"""Characters of a value that are shown."""

Sql = Annotated[str, Query(max_length=20_000, description="one SELECT over the tables of the run")]


class QueryPage(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a query."""

    names: Annotated[list[str], doc("names of the columns, in order")]
    columns: Annotated[
        list[list[Value]], doc("an array per column [rows]; lists and maps as JSON, long texts shortened")
    ]
    is_whole: Annotated[bool, doc("whether these are all rows")]
    source: Annotated[AnswerSource, doc("query and command for it")]


def shown(value: Any) -> Value:
    """Return a value of a row for the page. Integers beyond a double's precision are texts."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**53 else str(value)
    text = value if isinstance(value, str) else str(value)
    if isinstance(value, list | dict):
        text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= TEXT else text[:TEXT] + " …"


def _add(router: APIRouter, runs: OpenRuns) -> None:
    @router.get(f"{ROOT}/query", **documented(QueryPage, "Get the rows of a query"))
    async def query(run: RunName, sql: Sql) -> Response:
        async with runs.use(run) as opened:
            position, rows = await opened.any_rows(sql, MOST + 1)
            columns = [list(map(shown, column.to_pylist()[:MOST])) for column in rows.columns]
            source = query_source(opened.argument, sql, position)
            page = QueryPage(names=rows.column_names, columns=columns, is_whole=rows.num_rows <= MOST, source=source)
            return answered(page)


VIEW = ConsoleView("query", (QueryPage,), _add)
