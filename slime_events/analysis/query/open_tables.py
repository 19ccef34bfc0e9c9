"""`RunTables`: a run as SQL tables. `open_tables`: the same without `await`, for a notebook or script."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import duckdb
import pyarrow as pa

from schemas.errors import BadQuery, RunNotFound
from schemas.ids import order_in_group
from slime_events.analysis.query.answer import Answer, query_errors
from slime_events.analysis.query.cache import TableCache
from slime_events.analysis.query.database import (
    NO_REWARDS,
    database,
    detectors_in,
    event_tables_of,
    one_select,
    parts_of_detector,
)
from slime_events.analysis.query.detectors.detector import Detector
from slime_events.analysis.query.run_rows import RunRows, TableRows, is_about_rollouts
from slime_events.analysis.query.tables.graded import GRADED
from slime_events.core.run.run_folder import RUNS_DIR
from slime_events.core.run.run_reader import OpenedRun, open_run
from slime_events.model.ancestry import open_ancestry

_GRADED = f"SELECT count(*) AS graded, min(step) AS first_step, max(step) AS last_step FROM {GRADED.name}"


class RunTables:
    """Tables of an opened run, made by `tables_of`. Use them in the event loop in which the run was opened.

    runs: the queried run, then its ancestors. gone: why the run that it follows cannot be opened, if it cannot.
    """

    def __init__(self, runs: list[RunRows], gone: RunNotFound | None = None) -> None:
        self._runs, self._gone = runs, gone

    async def sql(self, query: str) -> Answer:
        """Answer one SELECT, in a new database with the tables that it needs. Raises BadQuery, RunNotFound, and the
        log's errors.
        """
        select = one_select(query)
        connection = await self.connection(select)
        with query_errors():
            return Answer(connection.sql(select))

    async def connection(self, select: str) -> duckdb.DuckDBPyConnection:
        """Return a new database with the tables that one SELECT needs. Raises as `sql`."""
        names = await asyncio.to_thread(event_tables_of, select)
        return await asyncio.to_thread(database, await self._loaded(names), names, detectors_in(select, names))

    async def findings(
        self, detectors: Sequence[Detector], second_rewards: pa.Table = NO_REWARDS, *, is_on: bool = False
    ) -> tuple[pa.Table, list[tuple[Detector, pa.Table]]]:
        """Return a row on the graded samples (`graded`, `first_step`, `last_step`), and the findings of each detector,
        in one database. second_rewards: see `NO_REWARDS`. is_on: whether the run is on. Raises as `sql`.
        """
        names = event_tables_of(_GRADED).union(*map(parts_of_detector, detectors))
        loaded = await self._loaded(names)

        def detect() -> tuple[pa.Table, list[tuple[Detector, pa.Table]]]:
            connection = database(loaded, names, detectors, second_rewards, stored=[GRADED.name])

            def read(sql: str) -> pa.Table:
                return Answer(connection.sql(sql)).arrow()

            with query_errors():
                return read(_GRADED), [(detector, read(detector.sql(is_on=is_on))) for detector in detectors]

        return await asyncio.to_thread(detect)

    async def stored(self, tables: Collection[str]) -> duckdb.DuckDBPyConnection:
        """Return a database with these tables as they are now, each computed once: for many queries, each with a cursor
        of its own. Raises as `sql`.
        """

        def names_of() -> frozenset[str]:
            return frozenset[str]().union(*(event_tables_of(f"FROM {table}") for table in tables))

        names = await asyncio.to_thread(names_of)
        loaded = await self._loaded(names)

        def computed() -> duckdb.DuckDBPyConnection:
            with query_errors():
                return database(loaded, names, stored=tables)

        return await asyncio.to_thread(computed)

    async def _loaded(self, names: Collection[str]) -> list[tuple[RunRows, dict[str, TableRows]]]:
        if self._gone is not None and any(map(is_about_rollouts, names)):
            raise self._gone
        return [(run, await run.load(names)) for run in self._runs if names]


@contextlib.asynccontextmanager
async def tables_of(
    opened: OpenedRun, *, with_parent: bool = False, cache: Path | None = None
) -> AsyncIterator[RunTables]:
    """Open the tables of a run. If the run follows another, its parent's rollouts are included.

    with_parent: include all ancestors, each up to the point of branching. cache: folder for Parquet tables of archives;
    by default a folder of this user. Raises RunNotFound, StorageError.
    """
    tables, gone = TableCache(cache), None
    async with open_ancestry(opened) as ancestry:
        own = ancestry.own
        runs = [RunRows(own, tables)]
        try:
            parent = await ancestry.parent(own) if with_parent or own.follows else None
            while parent is not None:
                runs.append(RunRows(parent, tables, len(runs), only_rollouts=not with_parent))
                parent = await ancestry.parent(parent) if with_parent else None
        except RunNotFound as error:
            if with_parent:
                raise
            gone = error
        yield RunTables(runs, gone)


_SAMPLES = 'SELECT "group", sample FROM log.rollout_requested UNION SELECT "group", sample FROM log.rollout_completed'


async def samples_where(
    opened: OpenedRun, sql: str, *, with_parent: bool = False, cache: Path | None = None
) -> list[str]:
    """Return the ids of the samples that a query selects, each once, in the query's order.

    The result needs a column `sample`, or `group_id` (or `group`) for all samples of a group. Nulls are skipped.
    with_parent, cache: see `tables_of`. Raises BadQuery, and the log's errors.
    """
    async with tables_of(opened, with_parent=with_parent, cache=cache) as tables:
        chosen = await tables.sql(sql)
        column = next((name for name in ("sample", "group_id", "group") if name in chosen.columns), None)
        if column is None:
            raise BadQuery(
                f"the query has columns {', '.join(chosen.columns)}. To select samples, it needs `sample` or `group_id`"
            )
        rows = chosen.relation.project(f'"{column}"').fetchall()
        ids = dict.fromkeys(str(value) for (value,) in rows if value is not None)
        if column == "sample":
            return list(ids)
        members: dict[str, list[str]] = {group: [] for group in ids}
        for group, sample in (await tables.sql(_SAMPLES)).rows():
            if group in members:
                members[group].append(sample)
        return [sample for group in members.values() for sample in sorted(group, key=order_in_group)]


T = TypeVar("T")


class OpenTables:
    """Tables of a run, given by name, folder or archive URL: `with open_tables("demo") as tables: ...`.

    A thread with its own event loop keeps the run open. opened: the run, for functions passed to `ask`. Raises
    RunNotFound, StorageError, ConfigError. Without `with`, call `close` at the end.
    """

    def __init__(
        self, run: str, *, runs_dir: str | Path = RUNS_DIR, with_parent: bool = False, cache: Path | None = None
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="slime-events-tables", daemon=True)
        self._thread.start()
        self._exits = contextlib.AsyncExitStack()
        atexit.register(self.close)  # stops the server, if one was started to read the log
        try:
            self.opened = self.ask(self._exits.enter_async_context(open_run(run, runs_dir)))
            tables = tables_of(self.opened, with_parent=with_parent, cache=cache)
            self._tables = self.ask(self._exits.enter_async_context(tables))
        except BaseException:  # also an interrupt: what is open is closed
            self.close()
            raise

    def sql(self, query: str) -> Answer:
        """Answer one SELECT over the tables as they are now. Raises BadQuery, and the log's errors."""
        return self.ask(self._tables.sql(query))

    def ask(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the event loop that holds the run open, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """Close the run. Answers stay valid."""
        atexit.unregister(self.close)
        if self._thread.is_alive():
            try:
                self.ask(self._exits.aclose())
            finally:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
                self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


open_tables = OpenTables
