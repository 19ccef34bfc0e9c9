"""Test what a question reads, in which order samples are chosen, and that an opened run is closed."""

from __future__ import annotations

import asyncio
import atexit
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest
from msgspec.structs import replace

from schemas.errors import BadQuery, MissingPart, RunNotFound
from schemas.groups import GroupAccepted
from schemas.prompts import PromptSubmitted
from schemas.rollouts import RolloutCompleted, RolloutRequested
from slime_events.analysis.query import answer as answers
from slime_events.analysis.query import open_tables, samples_where, tables_of
from slime_events.analysis.query.database import database, event_tables_of, one_select
from slime_events.analysis.query.event_tables import EVENT_TABLES
from slime_events.analysis.query.open_tables import OpenTables
from slime_events.analysis.query.run_rows import RunRows, TableRows
from slime_events.core.run.run_reader import OpenedRun
from tests.cli.small_run import GROUPS, REJECTED, RUN, events
from tests.lineage.opened import archived_parent, branch, opened, small


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "SELECT 1;",
        "SELECT 1 ;\n",
        "SELECT 1; -- c",
        "SELECT 1 /* c */;",
        "SELECT 1 -- c\n;-- d;",
        "SELECT 1;;",
    ],
)
def test_what_stands_behind_a_select_is_cut_off(sql: str) -> None:
    assert one_select(sql).strip() == "SELECT 1"


@pytest.mark.parametrize("sql", ["SELECT ';' AS a", "SELECT 'é' -- ü\n AS b", "SELECT 1 -- c\n AS d", "FROM samples"])
def test_what_stands_in_a_select_stays(sql: str) -> None:
    assert one_select(sql) == sql


@pytest.mark.parametrize("sql", ["", ";", "SELECT 1; SELECT 2", "CREATE TABLE a AS SELECT 1", "SELEC 1"])
def test_one_select_is_asked_for(sql: str) -> None:
    with pytest.raises(BadQuery):
        one_select(sql)


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("SELECT 1", set()),
        ("FROM log.step_committed", {"step_committed"}),
        ("FROM events", {"event"}),
        ("SELECT * FROM log.event WHERE type IN (SELECT name FROM spans)", {"event", "span"}),
        ('FROM "log"."group_rejected"', {"group_rejected"}),
    ],
)
def test_a_question_reads_what_it_names(sql: str, tables: set[str]) -> None:
    assert event_tables_of(sql) == tables


async def _rows(run: OpenedRun, sql: str, **how: Any) -> list[tuple[Any, ...]]:
    async with tables_of(run, **how) as tables:
        return (await tables.sql(sql)).rows()


async def test_sums_are_plain_integers_beside_columns_of_other_types() -> None:
    async with tables_of(await small()) as tables:
        result = await tables.sql("SELECT 1.5 AS a, sum(tokens) AS \"b c\", 'x' AS d FROM samples")
        plain = await tables.sql("SELECT 1 AS a")
    assert (result.columns, result.types[1:]) == (["a", "b c", "d"], ["BIGINT", "VARCHAR"])
    (row,) = result.arrow().to_pylist()
    assert (row["b c"], row["d"]) == (30, "x")
    assert (plain.rows(), plain.types) == ([(1,)], ["INTEGER"])
    with result.reading() as reader:
        assert reader.read_all().num_rows == 1


async def test_a_data_frame_wants_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    async with tables_of(await small()) as tables:
        result = await tables.sql("SELECT 1 AS a")
        wrong = await tables.sql("SELECT text::INTEGER FROM samples")
    monkeypatch.setattr(answers, "find_spec", lambda name: None)
    with pytest.raises(MissingPart):
        result.pandas()
    for take in (wrong.rows, wrong.arrow):
        with pytest.raises(BadQuery):
            take()
    with pytest.raises(BadQuery), wrong.reading() as reader:
        reader.read_all()


def test_a_query_s_own_line_is_named() -> None:
    with pytest.raises(BadQuery, match="line 3: "):
        event_tables_of("SELECT 1,\n 2,\n nothing_such FROM samples")
    with pytest.raises(BadQuery, match="line 2: "):
        one_select("SELECT 1,\n FROM FROM")


def _many(count: int) -> list[Any]:
    """The small run, with `count` samples in one group."""
    events_: list[Any] = []
    for event in events():
        events_.append(event)
        if isinstance(event, RolloutRequested) and event.sample == f"{GROUPS[0]}-s1":
            events_ += [_renamed(event, index) for index in range(2, count)]
    return events_


def _renamed(event: Any, index: int) -> Any:
    return replace(event, sample=f"{GROUPS[0]}-s{index}", index=index)


async def test_samples_of_a_group_are_in_their_order() -> None:
    samples = await samples_where(await opened(_many(12)), f"SELECT '{GROUPS[0]}' AS group_id")
    assert samples == [f"{GROUPS[0]}-s{index}" for index in range(12)]


async def test_groups_are_in_the_query_s_order_each_once_and_null_is_none() -> None:
    run = await small()
    sql = f"SELECT * FROM (VALUES ('{REJECTED}'), (NULL), ('{GROUPS[0]}'), ('{REJECTED}'), ('none')) AS v(group_id)"
    members = [f"{group}-s{index}" for group in (REJECTED, GROUPS[0]) for index in range(2)]
    assert await samples_where(run, sql) == members
    assert (
        await samples_where(run, f"SELECT sample, group_id FROM samples WHERE sample = '{members[1]}'") == members[1:2]
    )
    assert await samples_where(run, "SELECT NULL AS sample") == []


async def test_a_run_that_is_gone_is_said_where_it_matters(tmp_path: Path) -> None:
    child = await opened(branch(f"{tmp_path}/gone/{RUN}", version=1, position=9, follows=True), "child")
    assert await _rows(child, "SELECT version FROM versions") == [(1,)]
    for sql, how in (("FROM samples", {}), ("FROM versions", {"with_parent": True})):
        with pytest.raises(RunNotFound):
            await _rows(child, sql, **how)


@pytest.mark.parametrize(
    ("end", "until", "table", "where"),
    [
        (sys.maxsize, sys.maxsize, "batch_sealed", ""),
        (7, sys.maxsize, "batch_sealed", " WHERE position <= 7"),
        (7, 2, "batch_sealed", " WHERE position <= 7 AND step < 2"),
        (sys.maxsize, 2, "step_claimed", " WHERE step < 2"),
        (7, 2, "event", " WHERE position <= 7"),
    ],
)
def test_rows_end_where_the_part_does(end: int, until: int, table: str, where: str) -> None:
    part: Any = SimpleNamespace(opened=None, end=end, until=until)
    rows = RunRows(part, cache=None)  # type: ignore[arg-type]
    assert (rows.where(table), rows.depth) == (where, 0)


async def test_a_run_is_held_open_by_a_thread_until_it_is_closed(tmp_path: Path) -> None:
    where = await archived_parent(tmp_path / "archive")

    def ask() -> tuple[Any, Any]:
        tables = open_tables(where, cache=tmp_path / "kept")
        assert (tables._thread.is_alive(), tables._thread.daemon) == (True, True), "no process waits for it at its end"
        result = tables.sql("SELECT count(*) FROM steps")
        tables.close()
        tables.close()
        return tables._thread.is_alive(), result.rows()

    assert await asyncio.to_thread(ask) == (False, [(2,)])


async def test_a_run_that_cannot_be_opened_leaves_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[OpenTables] = []
    close = OpenTables.close

    def noted(tables: OpenTables) -> None:
        close(tables)
        closed.append(tables)

    monkeypatch.setattr(OpenTables, "close", noted)
    with pytest.raises(RunNotFound):
        await asyncio.to_thread(open_tables, "nowhere", runs_dir=tmp_path)
    assert [tables_._thread.is_alive() for tables_ in closed] == [False]


async def test_prompts_requests_and_ends_are_asked_for_by_type() -> None:
    written = events()
    counts = {
        name: sum(isinstance(event, kind) for event in written)
        for name, kind in (
            ("prompt_submitted", PromptSubmitted), ("rollout_requested", RolloutRequested),
            ("rollout_completed", RolloutCompleted), ("group_accepted", GroupAccepted),
        )
    }  # fmt: skip
    run = await small()
    for name, count in counts.items():
        assert await _rows(run, f"SELECT count(*), count(DISTINCT position) FROM log.{name}") == [(count, count)]
    both = "SELECT count(*) FROM log.prompt_submitted, log.group_accepted"
    assert await _rows(run, both) == [(counts["prompt_submitted"] * counts["group_accepted"],)]


def _no_rows(name: str) -> Any:
    """A run without events of this table."""
    run: Any = SimpleNamespace(depth=0, opened=SimpleNamespace(run="it's"), where=lambda table: "")
    return run, {name: TableRows([], EVENT_TABLES[name].schema.empty_table())}


@pytest.mark.parametrize("names", [(), ("event",)])
def test_a_database_lets_nobody_out(tmp_path: Path, names: tuple[str, ...]) -> None:
    file = tmp_path / "outside.csv"
    file.write_text("secret\n1\n")
    connection = database([_no_rows(name) for name in names], names)
    for sql in (f"FROM read_text('{file}')", f"COPY (SELECT 1) TO '{file}'", "SET enable_external_access = true"):
        with pytest.raises(duckdb.Error):
            connection.execute(sql).fetchall()
    if names:
        assert connection.execute("SELECT DISTINCT run FROM events").fetchall() == []
        with pytest.raises(duckdb.Error):
            connection.execute("SET memory_limit = '1GB'")
        with pytest.raises(duckdb.Error):
            connection.execute("FROM samples")
    assert file.read_text() == "secret\n1\n"


@pytest.mark.parametrize(
    ("sql", "hinted"),
    [
        ("SELECT group, count(*) FROM samples", True),
        ("SELECT group\nFROM samples", True),
        ("SELECT FROM FROM samples", False),
        ("SELECT sum(sample) -- by group\nFROM samples", False),
    ],
)
def test_who_names_the_word_of_sql_is_told_the_column(sql: str, hinted: bool) -> None:
    with pytest.raises(BadQuery) as caught:
        event_tables_of(one_select(sql))
    assert ("group_id" in str(caught.value)) is hinted


async def test_a_process_that_ends_without_closing_closes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where, at_end = await archived_parent(tmp_path / "archive"), list[Any]()
    monkeypatch.setattr(atexit, "register", at_end.append)
    monkeypatch.setattr(atexit, "unregister", at_end.remove)
    tables = await asyncio.to_thread(open_tables, where, cache=tmp_path / "kept")
    assert at_end == [tables.close]
    await asyncio.to_thread(at_end[0])
    assert (at_end, tables._thread.is_alive()) == ([], False)


async def test_queries_at_once_have_each_row_once() -> None:
    count = "SELECT count(*) FROM rewards"
    async with tables_of(await small()) as tables:
        await asyncio.gather(*(tables.sql(count) for _ in range(3)))
        assert (await tables.sql(count)).rows() == [(2 * len(GROUPS),)]
