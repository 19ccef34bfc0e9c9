"""`open_tables`: a run's tables in a notebook or a script, without `await`, whether an event loop runs there or not."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

from slime_events.analysis.query.answer import Answer
from slime_events.analysis.query.run_tables import RunTables, tables_of
from slime_events.core.run.run_folder import RUNS_DIR
from slime_events.core.run.run_reader import OpenedRun, open_run

T = TypeVar("T")


def open_tables(
    run: str, *, runs_dir: str | Path = RUNS_DIR, with_parent: bool = False, cache: Path | None = None
) -> OpenTables:
    """The tables of a run by name, folder or archive URL: `with open_tables("demo") as tables: ...`.

    Raises RunNotFound, StorageError, ConfigError. Without `with`, call `close` in the end.
    """
    return OpenTables(run, runs_dir, with_parent=with_parent, cache=cache)


class OpenTables:
    """A run that is held open by a thread with an event loop of its own. opened: the run, for functions of `ask`."""

    def __init__(self, run: str, runs_dir: str | Path, *, with_parent: bool, cache: Path | None) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="slime-events-tables", daemon=True)
        self._thread.start()
        self._exits = contextlib.AsyncExitStack()
        atexit.register(self.close)  # a log's server that was started to read it is stopped
        try:
            self.opened, self._tables = self.ask(self._open(run, runs_dir, with_parent, cache))
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

    async def _open(
        self, run: str, runs_dir: str | Path, with_parent: bool, cache: Path | None
    ) -> tuple[OpenedRun, RunTables]:
        opened = await self._exits.enter_async_context(open_run(run, runs_dir))
        tables = await self._exits.enter_async_context(tables_of(opened, with_parent=with_parent, cache=cache))
        return opened, tables
