"""`RunRows`: the rows of one run's event tables: from its archive as kept Parquet files, then from its log."""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from schemas.errors import StorageError
from schemas.subjects import of_type
from slime_events.analysis.query.cache import TableCache
from slime_events.analysis.query.event_tables import EVENT_TABLES, EventTable, RowBuilder
from slime_events.core.run.run_reader import OpenedRun
from storage.archive.log import ArchivedLog
from storage.archive.reader import ArchiveReader

_FEW = 4
"""Up to so many types of events each is read by its subject, instead of the whole log."""


@dataclass(frozen=True, slots=True)
class TableRows:
    """The rows of one event table: those in Parquet files, then those in memory."""

    files: tuple[Path, ...]
    table: pa.Table


@dataclass(slots=True)
class _Tail:
    batches: list[pa.RecordBatch] = field(default_factory=list)
    end: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a run's log that a query reads. depth: 0 for the queried run, 1 for its parent, and so on.
    end: the last position, None for all. first_later: the first step of the run after it, though this run may have
    sealed a batch of it before `end`. only_rollouts: prompts, rollouts, rewards and verdicts alone, of a run that
    another one follows.
    """

    depth: int = 0
    end: int | None = None
    first_later: int | None = None
    only_rollouts: bool = False

    def has(self, table: str) -> bool:
        """Whether any row of this event table is read."""
        return not self.only_rollouts or is_about_rollouts(table)

    def where(self, table: str) -> str:
        """A condition of SQL on the rows of an event table."""
        conditions = [] if self.end is None else [f"position <= {self.end}"]
        if not self.has(table):
            conditions.append("false")
        if self.first_later is not None and table in _STEPS:
            conditions.append(f"step < {self.first_later}")
        return f" WHERE {' AND '.join(conditions)}" if conditions else ""


_STEPS = ("batch_sealed", "step_claimed", "step_committed")


def is_about_rollouts(table: str) -> bool:
    """Whether an event table is of rollouts and the verdicts on them, and not of training."""
    return table.startswith(("prompt_", "rollout_", "turn_", "reward_", "group_")) or table == "token_run"


class RunRows:
    """Event tables of a part of a run's log."""

    def __init__(self, opened: OpenedRun, cache: TableCache, part: Part | None = None) -> None:
        self.opened, self.part = opened, part or Part()
        self._cache = cache
        self._tails: dict[str, _Tail] = {}
        self._reader: ArchiveReader | None = None
        self._looked = False

    @property
    def run(self) -> str:
        """Its name."""
        return self.opened.run

    async def load(self, names: Collection[str]) -> dict[str, TableRows]:
        """The rows of these event tables up to the log's end. Raises as the log and the archive do."""
        if not names:
            return {}
        end = await self.opened.log.position()
        end = end if self.part.end is None else min(end, self.part.end)
        reader = await self._archive()
        tables = [EVENT_TABLES[name] for name in names if self.part.has(name)]
        files: dict[str, list[Path]] = {}
        if reader is not None:
            files = await asyncio.to_thread(self._cache.files, reader, tables, self.opened.fetch)
        await self._read_on(tables, reader.last if reader else 0, end)
        return {
            table.name: TableRows(
                tuple(files.get(table.name, ())), pa.Table.from_batches(self._tails[table.name].batches, table.schema)
            )
            for table in tables
        } | {name: TableRows((), EVENT_TABLES[name].schema.empty_table()) for name in names if not self.part.has(name)}

    async def _archive(self) -> ArchiveReader | None:
        """The run's archive, looked for once; None where there is none, or it is of another log."""
        if not self._looked:
            self._looked = True
            self._reader = await _archive_of(self.opened)
        return self._reader

    async def _read_on(self, tables: Sequence[EventTable], archived: int, end: int) -> None:
        """Read the events after those that each table has already."""
        together: dict[int, list[EventTable]] = defaultdict(list)
        for table in tables:
            tail = self._tails.setdefault(table.name, _Tail(end=archived))
            together[tail.end].append(table)
        for begun, some in together.items():
            if begun < end:
                await self._read(some, begun + 1, end)

    async def _read(self, tables: Sequence[EventTable], start: int, end: int) -> None:
        builder = RowBuilder(
            tables, self.opened.fetch, lambda table, batch: self._tails[table.name].batches.append(batch)
        )
        few = len(builder.types) <= _FEW
        for subject in [of_type(self.run, one) for one in sorted(builder.types)] if few else [None]:
            async for recorded in self.opened.log.read(start, subject):
                if recorded.position > end:
                    break
                if recorded.envelope.type in builder.types:
                    builder.add(recorded)
                if builder.full:
                    await asyncio.to_thread(builder.flush)
        await asyncio.to_thread(builder.flush)
        for table in tables:
            self._tails[table.name].end = end


async def _archive_of(opened: OpenedRun) -> ArchiveReader | None:
    """The archive to read first; of a run with a log of its own only where both agree at the archive's end."""
    if isinstance(opened.log, ArchivedLog):
        return opened.log.reader
    if opened.folder is None:
        return None
    try:
        url = opened.settings.run.archive_url or str(opened.folder.archive)
        reader = await asyncio.to_thread(ArchiveReader, url, opened.run)
        return reader if await _same_history(opened, reader) else None
    except StorageError:
        return None  # away or damaged: the log holds all of it


async def _same_history(opened: OpenedRun, reader: ArchiveReader) -> bool:
    """Whether the archive's last event is the log's at that position, byte for byte."""
    if not reader.last or reader.last > await opened.log.position():
        return False
    archived = await asyncio.to_thread(lambda: next(reader.records(reader.last)))
    async for recorded in opened.log.read(reader.last):
        return recorded.data == archived.data
    return False
