"""`RunTables`: a run as tables to ask by SQL; `open_tables`: the same without `await`, for a notebook or a script."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

from schemas.errors import BadQuery, RunNotFound
from schemas.ids import order_in_group
from slime_events.analysis.model.ancestry import open_ancestry
from slime_events.analysis.query.answer import Answer, query_errors
from slime_events.analysis.query.cache import TableCache
from slime_events.analysis.query.database import database, event_tables_of, one_select
from slime_events.analysis.query.run_rows import RunRows, is_about_rollouts
from slime_events.core.run.run_folder import RUNS_DIR
from slime_events.core.run.run_reader import OpenedRun, open_run


class RunTables:
    """Made by `tables_of`. Belongs to the event loop that the run was opened in. runs: the queried one, then
    its ancestors. gone: why the run that it follows cannot be opened, where it cannot.
    """

    def __init__(self, runs: list[RunRows], gone: RunNotFound | None = None) -> None:
        self._runs, self._gone = runs, gone

    async def sql(self, query: str) -> Answer:
        """One SELECT, over a database of its own with all that it needs. Raises BadQuery, RunNotFound, and as the log
        does.
        """
        select = one_select(query)
        names = await asyncio.to_thread(event_tables_of, select)
        if self._gone is not None and any(map(is_about_rollouts, names)):
            raise self._gone
        loaded = [(run, await run.load(names)) for run in self._runs if names]
        connection = await asyncio.to_thread(database, loaded, names)
        with query_errors():
            return Answer(connection.sql(select))


@contextlib.asynccontextmanager
async def tables_of(
    opened: OpenedRun, *, with_parent: bool = False, cache: Path | None = None
) -> AsyncIterator[RunTables]:
    """The tables of an opened run; of one that follows another, with that one's rollouts. with_parent: and of those
    that it branched from, up to where it did.

    cache: folder of Parquet tables of archives; by default one of this user's. Raises RunNotFound, StorageError.
    """
    kept, gone = TableCache(cache), None
    async with open_ancestry(opened) as ancestry:
        own = ancestry.own
        runs = [RunRows(own, kept)]
        try:
            parent = await ancestry.parent(own) if with_parent or own.follows else None
            while parent is not None:
                runs.append(RunRows(parent, kept, len(runs), only_rollouts=not with_parent))
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
    """Ids of the samples that a query chooses, each once, in the query's order.

    Its result has a column `sample`, or else `group_id` (or `group`), which stands for all samples of the group. Rows
    where that is null are passed over. with_parent, cache: as `tables_of`. Raises BadQuery, and as the log does.
    """
    async with tables_of(opened, with_parent=with_parent, cache=cache) as tables:
        chosen = await tables.sql(sql)
        column = next((name for name in ("sample", "group_id", "group") if name in chosen.columns), None)
        if column is None:
            raise BadQuery(
                f"the query gives {', '.join(chosen.columns)}: to choose samples it needs a column `sample` or "
                "`group_id`"
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
    """The tables of a run by name, folder or archive URL: `with open_tables("demo") as tables: ...`.

    The run is held open by a thread with an event loop of its own. opened: the run, for functions of `ask`. Raises
    RunNotFound, StorageError, ConfigError. Without `with`, call `close` in the end.
    """

    def __init__(
        self, run: str, *, runs_dir: str | Path = RUNS_DIR, with_parent: bool = False, cache: Path | None = None
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="slime-events-tables", daemon=True)
        self._thread.start()
        self._exits = contextlib.AsyncExitStack()
        atexit.register(self.close)  # a log's server that was started to read it is stopped
        try:
            self.opened = self.ask(self._exits.enter_async_context(open_run(run, runs_dir)))
            tables = tables_of(self.opened, with_parent=with_parent, cache=cache)
            self._tables = self.ask(self._exits.enter_async_context(tables))
        except BaseException:
            self.close()
            raise

    def sql(self, query: str) -> Answer:
        """One SELECT over the tables as they are now. Raises BadQuery, and as the log does."""
        return self.ask(self._tables.sql(query))

    def ask(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` comes to, on the event loop that the run is open in."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """Let go of the run. Answers that were given stay."""
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
