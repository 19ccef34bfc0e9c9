"""The documented tables over the small run: their columns are what the documentation says, their rows what was said."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from slime_events.query import RunTables, tables_of
from slime_events.query.document import tables_page
from slime_events.query.tables import TABLES
from tests.cli.small_run import GROUPS, REJECTED, RUN
from tests.lineage.opened import small

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
async def tables() -> AsyncIterator[RunTables]:
    async with tables_of(await small()) as opened:
        yield opened


async def rows(tables: RunTables, sql: str) -> list[tuple[Any, ...]]:
    return (await tables.sql(sql)).rows()


def test_the_page_is_made_from_the_tables() -> None:
    assert (DOCS / "tables.md").read_text(encoding="utf-8") == tables_page()


async def test_every_column_is_there_in_its_order_with_its_type(tables: RunTables) -> None:
    for table in TABLES:
        answer = await tables.sql(f"FROM {table.name}")
        assert answer.columns == [column.name for column in table.columns]
        assert answer.types == [column.type for column in table.columns]
        answer.rows()


async def test_a_sample_from_its_request_to_its_version(tables: RunTables) -> None:
    sample = f"{GROUPS[3]}-s1"
    found = await rows(
        tables,
        "SELECT group_id, index, dataset, status, stop, prompt_tokens, tokens, versions, oldest_version, "
        "newest_version, spans[2].end, reward, grader, reward_detail->>'found', verdict, step, place, normalised, "
        f"version, staleness, queued_seconds FROM samples WHERE sample = '{sample}'",
    )
    place = ("inbox-aa", 1, "inbox", "completed", "length", 3, 3, [0, 1], 0, 1, 3)
    assert found == [(*place, 1.0, "exact", "42", "accepted", 1, 1, 1.0, 2, 1, 0.25)]


async def test_what_the_filter_refused_and_why(tables: RunTables) -> None:
    found = await rows(
        tables,
        "SELECT group_id, samples, completed, reward_mean, pass_rate, cause, reason, filter, figures['std'], step "
        "FROM groups WHERE verdict = 'rejected'",
    )
    assert found == [(REJECTED, 2, 2, 0.0, 0.0, "filter", "zero_std_0.0", "nonzero_std", 0.0, None)]


async def test_steps_and_the_versions_that_they_made(tables: RunTables) -> None:
    steps = await rows(tables, "SELECT step, version, groups, samples, reward, staleness, metrics['loss'] FROM steps")
    assert sorted(steps) == [(0, 1, 2, 4, 0.5, 0, 0.5), (1, 2, 2, 4, 0.5, 1, 0.5)]
    versions = await rows(tables, "SELECT version, parent, step, engines, lag FROM versions ORDER BY version")
    assert versions == [(0, None, None, 1, 0.2), (1, 0, 0, 1, 0.2), (2, 1, 1, 1, 0.2)]


async def test_tokens_of_chunks_and_completions_join(tables: RunTables) -> None:
    found = await rows(
        tables,
        f"SELECT place, token, log_prob, version, trained FROM tokens WHERE sample = '{GROUPS[3]}-s1' ORDER BY place",
    )
    assert found == [(0, 10, -0.5, 0, True), (1, 11, -0.25, 0, True), (2, 12, -0.125, 1, True)]
    assert await rows(tables, "SELECT count(*) FROM tokens") == [(30,)]


async def test_facts_are_tables_too(tables: RunTables) -> None:
    found = await rows(tables, "SELECT run, source_line, reason FROM log.prompt_rejected")
    assert found == [(RUN, 7, "not_json: no JSON object")]


async def test_spans_are_those_of_the_traces(tables: RunTables) -> None:
    names = await rows(tables, "SELECT name, count(*) FROM spans GROUP BY name ORDER BY name")
    groups, samples, steps, versions = 5, 10, 2, 3
    assert names == [
        ("activate", versions), ("batch", steps), ("decide", groups), ("generate", samples), ("grade", samples),
        ("publish", versions), ("submit", groups), ("train", steps),
    ]  # fmt: skip
    orphans = "SELECT count(*) FROM spans a ANTI JOIN spans b ON a.parent = b.span WHERE a.parent IS NOT NULL"
    assert await rows(tables, orphans) == [(0,)]
