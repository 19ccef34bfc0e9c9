"""`OpenRuns`: runs that stay open between requests. `OpenRun`: one of them, with its tables."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable
from typing import Annotated, NamedTuple, Self, TypeVar

import duckdb
import pyarrow as pa

from schemas.doc import doc
from schemas.errors import BadQuery
from serve_apps.http.console.kept_lanes import KeptLanes
from serve_apps.http.console.moments import Moments
from serve_apps.http.console.pace import LONGEST_OF_TABLES_S, rest_s
from serve_apps.http.console.run_source import RunSource
from serve_apps.http.console.text_search import TextSearch, text_condition
from slime_events.analysis.query import Answer, RunTables, tables_of
from slime_events.analysis.query.database import one_select
from slime_events.analysis.query.detectors import ALARMS
from slime_events.analysis.query.inspection import Inspection, inspect
from slime_events.core.run.run_reader import OpenedRun
from storage.cancellation import end_all

Read = TypeVar("Read")
STORED = ("trained", "rewards", "samples", "groups", "steps")
"""Tables that are computed once per position of the log."""
IDLE_S = 60.0
"""Seconds without a request after which a run is closed, and with it a server that was started to read its log."""
STILL_S = 20.0
"""Seconds between two looks for alarms in a run that is on, while its log does not grow: a wait gets longer."""
QUERY_S = 10.0
"""Seconds that a query may take."""


class Snapshot(NamedTuple):
    """Tables of a run at a position."""

    connection: Annotated[duckdb.DuckDBPyConnection, doc("take a cursor for each query")]
    position: Annotated[int, doc("the log's last position when they were computed")]
    search: Annotated[TextSearch, doc("finds samples by their texts")]
    answers: Annotated[dict[str, pa.Table], doc("rows of queries that are kept, by query")]
    next_at: Annotated[float, doc("monotonic time before which they are not computed again [s]")]


class Inspected(NamedTuple):
    """Alarms of a run at a position."""

    inspection: Annotated[Inspection, doc("the detectors of alarms, with their findings")]
    position: Annotated[int, doc("the log's last position when they were run")]
    is_on: Annotated[bool, doc("whether the run was on")]
    next_at: Annotated[float, doc("monotonic time before which they are not run again [s]")]


class OpenRun:
    """A run and its tables. Use it in the event loop that opened it."""

    def __init__(self, opened: OpenedRun, tables: RunTables, argument: str) -> None:
        self.opened, self.argument, self.moments = opened, argument, Moments(opened)
        self.lanes = KeptLanes(opened, tables)
        self._tables, self._lock = tables, asyncio.Lock()
        self._snapshot: Snapshot | None = None
        self._refreshing: asyncio.Task[Snapshot] | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._inspected: Inspected | None = None
        self._inspecting, self._asking = asyncio.Lock(), asyncio.Lock()

    async def rows(self, sql: str) -> tuple[int, pa.Table]:
        """Return the position of the tables and the rows of one SELECT over them.

        A query that takes longer than QUERY_S is ended. Raises BadQuery, and the log's errors.
        """
        return await self.rows_with("", lambda _: sql)

    async def kept_rows(self, sql: str) -> tuple[int, pa.Table]:
        """Return the same for a query that every reader sends: its rows are kept as long as the tables."""
        snapshot = await self.snapshot()
        if sql not in snapshot.answers:
            snapshot.answers[sql] = await _rows_within_limit(snapshot.connection.cursor(), one_select(sql))
        return snapshot.position, snapshot.answers[sql]

    async def rows_with(self, text: str, sql: Callable[[str], str]) -> tuple[int, pa.Table]:
        """Return the same for a query over the samples whose prompt or response contains a text.

        sql: gives the query from the condition for these samples, which is empty for no text. Raises as `rows`.
        """
        one_select(sql(text_condition(text)))
        snapshot = await self.snapshot()
        connection = snapshot.connection.cursor()
        condition = await _within_limit(connection, lambda: snapshot.search.matching(connection, text)) if text else ""
        return snapshot.position, await _rows_within_limit(connection, one_select(sql(condition)))

    def prepare_search(self) -> None:
        """Prepare the search for texts meanwhile, so that the first one need not wait."""
        if self._snapshot is not None and (self._preparing is None or self._preparing.done()):
            search = self._snapshot.search
            self._preparing = asyncio.create_task(asyncio.to_thread(search.prepare, self._snapshot.connection.cursor()))
            self._preparing.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def any_rows(self, sql: str, most: int) -> tuple[int, pa.Table]:
        """Return the position of the log and the first rows of one SELECT over all tables and detectors, as
        `slime-events query` gives them. Raises as `rows`.
        """
        select = one_select(sql)
        position = await self.opened.log.position()
        async with self._asking:  # each query loads its own tables
            connection = await self._tables.connection(select)
            return position, await _rows_within_limit(connection, f"SELECT * FROM (\n{select}\n) LIMIT {most}")

    @property
    def is_ready(self) -> bool:
        """Whether the tables have been computed once."""
        return self._snapshot is not None

    async def snapshot(self) -> Snapshot:
        """Return the tables. If they are older than the log, new ones are computed meanwhile for later requests."""
        snapshot = self._snapshot
        if snapshot is None:
            return await self.refreshed()
        if time.monotonic() >= snapshot.next_at and (self._refreshing is None or self._refreshing.done()):
            self._refreshing = asyncio.create_task(self.refreshed())
            self._refreshing.add_done_callback(lambda task: task.cancelled() or task.exception())
        return snapshot

    async def refreshed(self, *, at_once: bool = False) -> Snapshot:
        """Return the tables, computed again if the log has grown and the pause since the last time is over. at_once:
        do not wait for that pause.
        """
        async with self._lock:
            snapshot, now = self._snapshot, time.monotonic()
            if snapshot is not None and now < snapshot.next_at and not at_once:
                return snapshot
            position = await self.opened.log.position()
            if snapshot is None or position != snapshot.position:
                connection = await self._tables.stored(STORED)
                snapshot = Snapshot(connection, position, TextSearch(), {}, 0.0)
            taken = time.monotonic() - now
            self._snapshot = snapshot._replace(next_at=now + taken + rest_s(taken, LONGEST_OF_TABLES_S))
            return self._snapshot

    async def inspected(self, *, is_on: bool) -> Inspected:
        """Return the alarms. They are looked for again if the log has grown, and while the run is on every STILL_S
        seconds, with a rest after each look; without one when the run has ended.
        """
        async with self._inspecting:
            kept, now = self._inspected, time.monotonic()
            position = await self.opened.log.position()
            if kept is None or is_on != kept.is_on:
                due_at = now
            else:
                due_at = kept.next_at + (0.0 if position != kept.position else STILL_S if is_on else math.inf)
            if kept is None or now >= due_at:
                where = self.opened.run, self.opened.where
                inspection = await inspect(self._tables, *where, ALARMS, is_on=is_on)
                ended = time.monotonic()
                kept = self._inspected = Inspected(
                    inspection, position, is_on, ended + rest_s(ended - now, LONGEST_OF_TABLES_S)
                )
            return kept

    async def close(self) -> None:
        """End a computation that is in progress."""
        await end_all(*(task for task in (self._refreshing, self._preparing) if task is not None))


async def _rows_within_limit(connection: duckdb.DuckDBPyConnection, select: str) -> pa.Table:
    """Return the rows of a query. Raises BadQuery, also if it takes longer than QUERY_S."""
    return await _within_limit(connection, lambda: Answer(connection.sql(select)).arrow())


async def _within_limit(connection: duckdb.DuckDBPyConnection, read: Callable[[], Read]) -> Read:
    """Return what is read from a connection. Raises BadQuery, also if it takes longer than QUERY_S."""
    reading = asyncio.create_task(asyncio.to_thread(_read, read))
    done, _ = await asyncio.wait([reading], timeout=QUERY_S)
    if not done:
        connection.interrupt()
        await asyncio.wait([reading])
        reading.exception()
        raise BadQuery(f"the query took longer than {QUERY_S:.0f} s: use slime-events query for it")
    return reading.result()


def _read(read: Callable[[], Read]) -> Read:
    try:
        return read()
    except duckdb.Error as error:
        raise BadQuery(f"the query failed: {error}") from error


class _Kept:
    """A run that a task of its own keeps open: the task that opens a run must close it."""

    def __init__(self, source: RunSource, run: str) -> None:
        self._closing, self.users, self.used_at = asyncio.Event(), 0, time.monotonic()
        self.ready: asyncio.Future[OpenRun] = asyncio.get_running_loop().create_future()
        self.ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())
        self._task = asyncio.create_task(self._keep(source, run), name=f"console-keeps-{run}")

    async def _keep(self, source: RunSource, run: str) -> None:
        try:
            async with source.open(run) as opened, tables_of(opened) as tables:
                kept = OpenRun(opened, tables, source.argument(run))
                self.ready.set_result(kept)
                await self._closing.wait()
                await kept.close()
        except BaseException as error:  # waiting requests get any error, also a cancellation
            if not self.ready.done():
                self.ready.set_exception(error)
            raise

    @property
    def idle_s(self) -> float:
        return 0.0 if self.users else time.monotonic() - self.used_at

    async def close(self) -> None:
        self._closing.set()
        with contextlib.suppress(Exception):  # waiting requests have got the error
            await self._task


class OpenRuns:
    """Opens runs at their first request, and closes those without requests. source: the served runs."""

    def __init__(self, source: RunSource, idle_s: float = IDLE_S) -> None:
        self.source, self._idle_s = source, idle_s
        self._kept: dict[str, _Kept] = {}

    @contextlib.asynccontextmanager
    async def use(self, run: str) -> AsyncIterator[OpenRun]:
        """Open a run for one request. Raises RunNotFound, StorageError, ConfigError."""
        kept = self._kept.get(run)
        if kept is None:
            kept = self._kept[run] = _Kept(self.source, run)
        kept.users += 1
        try:
            opened = await asyncio.shield(kept.ready)
        except BaseException:  # also a cancelled request is no user any more
            kept.users -= 1
            if kept.ready.done() and self._kept.get(run) is kept:  # the next request tries again
                del self._kept[run]
                await kept.close()
            raise
        try:
            yield opened
        finally:
            kept.users -= 1
            kept.used_at = time.monotonic()

    async def __aenter__(self) -> Self:
        self._closer = asyncio.create_task(self._close_idle(), name="console-closes-idle-runs")
        return self

    async def __aexit__(self, *_: object) -> None:
        await end_all(self._closer)
        for kept in self._kept.values():
            await kept.close()
        self._kept.clear()

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(min(self._idle_s, 5.0))
            for run, kept in list(self._kept.items()):
                if kept.idle_s >= self._idle_s:
                    del self._kept[run]
                    await kept.close()
