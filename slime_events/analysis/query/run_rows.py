"""`RunRows`: rows of one run's event tables, from its archive as stored Parquet files, then from its log."""

import asyncio
import sys
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import pyarrow as pa

from schemas.doc import doc
from schemas.errors import StorageError
from schemas.subjects import of_type
from slime_events.analysis.query.cache import TableCache
from slime_events.analysis.query.event_tables import EVENT_TABLES, EventTable
from slime_events.analysis.query.row_builder import RowBuilder
from slime_events.core.run.run_reader import OpenedRun
from slime_events.model.ancestry import Ancestor
from storage.archive.log import ArchivedLog
from storage.archive.reader import ArchiveReader

_FEW = 4
"""Up to this number of event types, each is read by its subject, instead of the whole log."""


class TableRows(NamedTuple):
    """Rows of one event table."""

    files: Annotated[list[Path], doc("Parquet files, which come first")]
    table: Annotated[pa.Table, doc("rows in memory")]


_STEPS = ("batch_sealed", "step_claimed", "step_committed")


def is_about_rollouts(table: str) -> bool:
    """Return whether an event table is about rollouts and verdicts on them, rather than training."""
    return table.startswith(("prompt_", "rollout_", "turn_", "reward_", "group_")) or table == "token_run"


class RunRows:
    """Event tables of a part of a run's log. depth: 0 for the queried run, 1 for its parent, and so on. only_rollouts:
    load prompts, rollouts, rewards and verdicts alone, of a run that another one follows.
    """

    def __init__(self, part: Ancestor, cache: TableCache, depth: int = 0, *, only_rollouts: bool = False) -> None:
        self.opened, self.depth = part.opened, depth
        self._part, self._cache, self._only_rollouts = part, cache, only_rollouts
        self._reader: ArchiveReader | None = None
        self._batches = defaultdict[str, list[pa.RecordBatch]](list)
        self._ends: dict[str, int] = {}
        self._loading = asyncio.Lock()

    def where(self, table: str) -> str:
        """Return an SQL condition that selects the part's rows. A run may have sealed batches outside the part."""
        conditions = [f"position <= {self._part.end}"] if self._part.end < sys.maxsize else []
        if self._part.until < sys.maxsize and table in _STEPS:
            conditions.append(f"step < {self._part.until}")
        return f" WHERE {' AND '.join(conditions)}" if conditions else ""

    async def load(self, names: Collection[str]) -> dict[str, TableRows]:
        """Return the rows of these event tables up to the log's end. Raises the errors of log and archive."""
        async with self._loading:  # two loads at once would read the same events, and have their rows twice
            return await self._load(names)

    async def _load(self, names: Collection[str]) -> dict[str, TableRows]:
        end = min(await self.opened.log.position(), self._part.end)
        if not self._ends:  # searched for once
            self._reader = await _archive_of(self.opened)
        tables = [EVENT_TABLES[name] for name in names if not self._only_rollouts or is_about_rollouts(name)]
        files: dict[str, list[Path]] = {}
        if self._reader is not None:
            files = await asyncio.to_thread(self._cache.files, self._reader, tables, self.opened.fetch)
        together = defaultdict[int, list[EventTable]](list)
        for table in tables:
            together[self._ends.setdefault(table.name, self._reader.last if self._reader else 0)].append(table)
        for last, group in together.items():
            if last < end:
                await self._read(group, last + 1, end)
        return {
            name: TableRows(files.get(name, []), pa.Table.from_batches(self._batches[name], EVENT_TABLES[name].schema))
            for name in names
        }

    async def _read(self, tables: Sequence[EventTable], start: int, end: int) -> None:
        builder = RowBuilder(tables, self.opened.fetch, lambda table, batch: self._batches[table.name].append(batch))
        few = len(builder.types) <= _FEW
        for subject in [of_type(self.opened.run, kind) for kind in sorted(builder.types)] if few else [None]:
            async for recorded in self.opened.log.read(start, subject):
                if recorded.position > end:
                    break
                if recorded.envelope.type in builder.types:
                    builder.add([recorded])
                if builder.full:
                    await asyncio.to_thread(builder.flush)
        await asyncio.to_thread(builder.flush)
        self._ends |= {table.name: end for table in tables}


async def _archive_of(opened: OpenedRun) -> ArchiveReader | None:
    """Return the archive to read first. A run with its own log has one only if both agree at the archive's end."""
    if isinstance(opened.log, ArchivedLog):
        return opened.log.reader
    if opened.folder is None:
        return None
    try:
        url = opened.folder.address(opened.settings.run.archive_url, opened.folder.archive)
        reader = await asyncio.to_thread(ArchiveReader, url, opened.run)
        return reader if await _same_history(opened, reader) else None
    except StorageError:
        return None  # missing or damaged: the log holds all events


async def _same_history(opened: OpenedRun, reader: ArchiveReader) -> bool:
    """Return whether the archive's last record equals the log's at that position, byte for byte."""
    if not reader.last or reader.last > await opened.log.end():
        return False
    archived = await asyncio.to_thread(lambda: next(reader.read_records(reader.last)))
    async for recorded in opened.log.read_records(reader.last):
        return recorded.data == archived.data
    return False
