"""`RunTables`: a run as tables to ask by SQL. A live run answers with what is in its log when it is asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from schemas.errors import RunNotFound
from slime_events.opened_run import OpenedRun, branched_of, open_run
from slime_events.query.answer import Answer
from slime_events.query.cache import TableCache
from slime_events.query.database import ask, database, facts_needed, one_select
from slime_events.query.run_facts import RunFacts


class RunTables:
    """Made by `tables_of`. Belongs to the event loop that the run was opened in."""

    def __init__(self, runs: list[RunFacts]) -> None:
        self._runs = runs

    async def sql(self, query: str) -> Answer:
        """One SELECT, over a database of its own with all that it needs. Raises BadQuery, and as the log does."""
        select = one_select(query)
        names = await asyncio.to_thread(facts_needed, select)
        loaded = [(facts, await facts.load(names)) for facts in self._runs]
        return ask(await asyncio.to_thread(database, loaded, names), select)


@contextlib.asynccontextmanager
async def tables_of(
    opened: OpenedRun, *, with_parent: bool = False, cache: Path | None = None
) -> AsyncIterator[RunTables]:
    """The tables of an opened run. with_parent: and of those that it branched from, up to where it did.

    cache: folder of Parquet tables of archives; by default one of this user's. Raises RunNotFound, StorageError.
    """
    kept = TableCache(cache)
    runs = [RunFacts(opened, kept)]
    async with contextlib.AsyncExitStack() as parents:
        branched = await branched_of(opened.log) if with_parent else None
        while branched is not None:
            try:
                parent = await parents.enter_async_context(open_run(branched.where))
            except RunNotFound as error:
                raise RunNotFound(
                    f"the run goes on from {branched.run}, which was at {branched.where}: {error}"
                ) from error
            end = None if branched.follows else branched.position
            runs.append(RunFacts(parent, kept, depth=len(runs), end=end))
            branched = await branched_of(parent.log)
        yield RunTables(runs)
