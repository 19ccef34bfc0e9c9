"""`RunRows`: the rows of one run's event tables: from its archive as kept Parquet files, then from its log."""

import asyncio
import sys
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from schemas.errors import StorageError
from schemas.subjects import of_type
from slime_events.analysis.model.ancestry import Ancestor
from slime_events.analysis.query.cache import TableCache
from slime_events.analysis.query.event_tables import EVENT_TABLES, EventTable, RowBuilder
from slime_events.core.run.run_reader import OpenedRun
from storage.archive.log import ArchivedLog
from storage.archive.reader import ArchiveReader

_FEW = 4
"""Up to so many types of events each is read by its subject, instead of the whole log."""


class TableRows(NamedTuple):
    """The rows of one event table: those in Parquet files, then those in memory."""

    files: list[Path]
    table: pa.Table


_STEPS = ("batch_sealed", "step_claimed", "step_committed")


def is_about_rollouts(table: str) -> bool:
    """Whether an event table is of rollouts and the verdicts on them, and not of training."""
    return table.startswith(("prompt_", "rollout_", "turn_", "reward_", "group_")) or table == "token_run"


class RunRows:
    """Event tables of a part of a run's log. depth: 0 for the queried run, 1 for its parent, and so on. only_rollouts:
    prompts, rollouts, rewards and verdicts alone, of a run that another one follows.
    """

    def __init__(self, part: Ancestor, cache: TableCache, depth: int = 0, *, only_rollouts: bool = False) -> None:
        self.opened, self.depth = part.opened, depth
        self._part, self._cache, self._only_rollouts = part, cache, only_rollouts
        self._reader: ArchiveReader | None = None
        self._batches = defaultdict[str, list[pa.RecordBatch]](list)
        self._ends: dict[str, int] = {}

    def where(self, table: str) -> str:
        """A condition of SQL on the rows of an event table: a run may have sealed a batch that is not the part's."""
        conditions = [f"position <= {self._part.end}"] if self._part.end < sys.maxsize else []
        if self._part.until < sys.maxsize and table in _STEPS:
            conditions.append(f"step < {self._part.until}")
        return f" WHERE {' AND '.join(conditions)}" if conditions else ""

    async def load(self, names: Collection[str]) -> dict[str, TableRows]:
        """The rows of these event tables up to the log's end. Raises as the log and the archive do."""
        end = min(await self.opened.log.position(), self._part.end)
        if not self._ends:  # it is looked for once
            self._reader = await _archive_of(self.opened)
        tables = [EVENT_TABLES[name] for name in names if not self._only_rollouts or is_about_rollouts(name)]
        files: dict[str, list[Path]] = {}
        if self._reader is not None:
            files = await asyncio.to_thread(self._cache.files, self._reader, tables, self.opened.fetch)
        together = defaultdict[int, list[EventTable]](list)
        for table in tables:
            together[self._ends.setdefault(table.name, self._reader.last if self._reader else 0)].append(table)
        for begun, some in together.items():
            if begun < end:
                await self._read(some, begun + 1, end)
        return {
            name: TableRows(files.get(name, []), pa.Table.from_batches(self._batches[name], EVENT_TABLES[name].schema))
            for name in names
        }

    async def _read(self, tables: Sequence[EventTable], start: int, end: int) -> None:
        builder = RowBuilder(tables, self.opened.fetch, lambda table, batch: self._batches[table.name].append(batch))
        few = len(builder.types) <= _FEW
        for subject in [of_type(self.opened.run, one) for one in sorted(builder.types)] if few else [None]:
            async for recorded in self.opened.log.read(start, subject):
                if recorded.position > end:
                    break
                event_type = recorded.envelope.type
                if event_type in builder.types:
                    builder.add(recorded, event_type)
                if builder.full:
                    await asyncio.to_thread(builder.flush)
        await asyncio.to_thread(builder.flush)
        self._ends |= {table.name: end for table in tables}


async def _archive_of(opened: OpenedRun) -> ArchiveReader | None:
    """The archive to read first; of a run with a log of its own only where both agree at the archive's end."""
    if isinstance(opened.log, ArchivedLog):
        return opened.log.reader
    if opened.folder is None:
        return None
    try:
        url = opened.folder.address(opened.settings.run.archive_url, opened.folder.archive)
        reader = await asyncio.to_thread(ArchiveReader, url, opened.run)
        return reader if await _same_history(opened, reader) else None
    except StorageError:
        return None  # away or damaged: the log holds all of it


async def _same_history(opened: OpenedRun, reader: ArchiveReader) -> bool:
    """Whether the archive's last record is the log's at that position, byte for byte."""
    if not reader.last or reader.last > await opened.log.end():
        return False
    archived = await asyncio.to_thread(lambda: next(reader.read_records(reader.last)))
    async for recorded in opened.log.read_records(reader.last):
        return recorded.data == archived.data
    return False
