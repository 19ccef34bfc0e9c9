"""Runs stay open between requests, are closed when nobody asks, and have new tables when their log has grown."""

from __future__ import annotations

import asyncio

import pytest

from schemas.errors import BadQuery, RunNotFound
from serve_apps.http.console import open_runs, pace
from serve_apps.http.console.open_runs import OpenRuns
from storage.memory_log import MemoryLog
from tests import made
from tests.cli.small_run import RUN
from tests.console.served import small

COUNT = "SELECT count(*) AS n FROM samples"


async def test_a_run_is_opened_once_and_closed_when_idle() -> None:
    source = await small()
    async with OpenRuns(source, idle_s=0.05) as runs:
        async with runs.use(RUN) as first, runs.use(RUN) as second:
            assert first is second
            await asyncio.sleep(0.15)
            assert source.opens == [RUN]
        for _ in range(100):
            await asyncio.sleep(0.02)
            if not source.opens:
                break
        assert source.opens == []
        async with runs.use(RUN) as third:
            assert third is not first


async def test_a_run_that_cannot_be_opened_is_tried_again() -> None:
    source = await small()
    there = source.runs.pop(RUN)
    async with OpenRuns(source) as runs:
        with pytest.raises(RunNotFound):
            async with runs.use(RUN):
                pass
        source.runs[RUN] = there
        async with runs.use(RUN) as opened:
            assert opened.opened is there


async def test_tables_grow_with_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "REST", -1.0)  # no pause
    source = await small()
    async with OpenRuns(source) as runs, runs.use(RUN) as run:
        before, rows = await run.rows(COUNT)
        log = source.runs[RUN].log
        assert isinstance(log, MemoryLog)
        await made.say(log, made.submitted("new"), made.requested("new-s0"))
        await run.refreshed()
        after, more = await run.rows(COUNT)
    assert after == before + 2
    assert more["n"].to_pylist() == [rows["n"].to_pylist()[0] + 1]


async def test_alarms_and_tables_at_once_have_each_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "REST", -1.0)  # no pause
    source = await small()
    async with OpenRuns(source) as runs, runs.use(RUN) as run:
        inspected, _ = await asyncio.gather(run.inspected(is_on=False), run.refreshed())
        assert inspected.inspection.graded == 10
        log = source.runs[RUN].log
        assert isinstance(log, MemoryLog)
        await made.say(log, made.submitted("new"), made.requested("new-s0"))
        await asyncio.gather(run.inspected(is_on=False), run.refreshed())
        _, rows = await run.rows("SELECT count(*) AS n, count(DISTINCT sample) AS different FROM samples")
    assert rows.to_pylist() == [{"n": 11, "different": 11}]


async def test_the_end_of_a_run_waits_for_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "REST", 1e9)
    source = await small()
    async with OpenRuns(source) as runs, runs.use(RUN) as run:
        first, looked = await run.refreshed(), await run.inspected(is_on=True)
        log = source.runs[RUN].log
        assert isinstance(log, MemoryLog)
        await made.say(log, made.submitted("new"), made.requested("new-s0"))
        end = await log.position()
        assert (await run.refreshed()).position == first.position < end
        assert (await run.inspected(is_on=True)).position == looked.position
        assert (await run.refreshed(at_once=True)).position == end
        assert (await run.inspected(is_on=False)).position == end


async def test_a_query_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    source = await small()
    async with OpenRuns(source) as runs, runs.use(RUN) as run:
        await run.snapshot()
        monkeypatch.setattr(open_runs, "QUERY_S", 0.05)
        with pytest.raises(BadQuery):
            await run.rows("SELECT count(*) FROM range(100000000) a, range(100000) b WHERE a.range + b.range = 7")


@pytest.mark.parametrize("sql", ["DROP TABLE samples", "SELECT 1; SELECT 2", "CREATE TABLE a AS SELECT 1", ""])
async def test_only_one_select_is_answered(sql: str) -> None:
    source = await small()
    async with OpenRuns(source) as runs, runs.use(RUN) as run:
        with pytest.raises(BadQuery):
            await run.rows(sql)
