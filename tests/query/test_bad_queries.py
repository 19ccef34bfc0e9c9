"""Test that an invalid question about a run is refused, with a message about what was probably meant."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from schemas.errors import BadQuery
from slime_events.analysis.query import RunTables, tables_of
from tests.lineage.opened import small


@pytest.fixture
async def tables() -> AsyncIterator[RunTables]:
    async with tables_of(await small()) as opened:
        yield opened


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT *\nFROM sample", "unknown table sample. Did you mean samples"),
        ("SELECT *\nFROM sample", "line 2: FROM sample"),
        ("SELECT 1,\n  rewards FROM samples", "unknown column rewards. Did you mean reward"),
        ("SELECT 1,\n  rewards FROM samples", "line 2:   rewards FROM samples"),
        ("SELECT group, count(*) FROM samples", "the column group_id"),
        ("SELECT 1; SELECT 2", "the query has 2 statements. Give one SELECT"),
        ("", "the query has 0 statements. Give one SELECT"),
        ("PIVOT samples ON stop USING count(*)", "IN (...)"),
    ],
)
async def test_the_message_helps(tables: RunTables, sql: str, message: str) -> None:
    with pytest.raises(BadQuery) as error:
        await tables.sql(sql)
    assert message in str(error.value)


async def test_a_wrong_value_is_named_when_the_rows_are_taken(tables: RunTables) -> None:
    answer = await tables.sql("SELECT text::INTEGER FROM samples")
    with pytest.raises(BadQuery, match="Could not convert string 'is 42'"):
        answer.rows()


@pytest.mark.parametrize(
    "sql",
    [
        "COPY samples TO '{file}'",
        "CREATE TABLE kept AS FROM samples",
        "DELETE FROM log.event",
        "INSTALL httpfs",
        "LOAD httpfs",
        "ATTACH '{file}'",
        "SET enable_external_access = true",
        "FROM read_text('{file}')",
        "FROM read_csv('{file}')",
        "FROM '{file}'",
        "FROM query('COPY samples TO ''{file}''')",
    ],
)
async def test_nothing_outside_can_be_reached(tables: RunTables, tmp_path: Path, sql: str) -> None:
    file = tmp_path / "outside.csv"
    file.write_text("secret\n1\n")
    with pytest.raises(BadQuery):
        (await tables.sql(sql.format(file=file))).rows()
    assert file.read_text() == "secret\n1\n"
