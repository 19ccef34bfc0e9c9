"""*Query*: the rows of any SELECT, and what is refused."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from serve_apps.http.console.views.query import MOST, TEXT, shown
from tests.console.served import URL, get

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_rows_of_any_table_and_any_type(client: httpx.AsyncClient) -> None:
    page = await get(client, f"{URL}/query", sql="SELECT step, committed, metrics, NULL AS n FROM steps ORDER BY step;")
    assert page["names"] == ["step", "committed", "metrics", "n"]
    steps, times, metrics, nulls = page["columns"]
    assert steps == [0, 1]
    assert all(isinstance(value, str) for value in (*times, *metrics))
    assert nulls == [None, None]
    events = await get(client, f"{URL}/query", sql="SELECT count(*) AS n FROM events")  # not among the stored tables
    assert events["columns"][0][0] == events["source"]["position"]


async def test_many_rows_are_cut(client: httpx.AsyncClient) -> None:
    page = await get(client, f"{URL}/query", sql=f"SELECT * FROM range({MOST + 1})")
    assert (len(page["columns"][0]), page["is_whole"]) == (MOST, False)
    page = await get(client, f"{URL}/query", sql=f"SELECT * FROM range({MOST})")
    assert (len(page["columns"][0]), page["is_whole"]) == (MOST, True)


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE samples",
        "SELECT 1; SELECT 2",
        "SELECT 1) TO '/tmp/x'; --",
        "FROM read_text('/etc/passwd')",
        "FROM none",
        "",
    ],
)
async def test_only_one_select_over_the_run_is_answered(client: httpx.AsyncClient, sql: str) -> None:
    answer = await client.get(f"{URL}/query", params={"sql": sql})
    assert answer.status_code == 400
    assert answer.json()["error"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2**60, str(2**60)),
        (True, True),
        ([1, None], "[1, null]"),
        ([("a", 1.5)], '[["a", 1.5]]'),
        (b"\xff", str(b"\xff")),
        ("x" * (TEXT + 1), "x" * TEXT + " …"),
    ],
)
async def test_values(value: Any, expected: Any) -> None:
    assert shown(value) == expected
