"""`RunFacts`: the facts of one run, archived and live together without a seam.

What the run's archive holds comes from there, as Parquet files that are kept; what was said since comes from the log.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from schemas.errors import StorageError
from schemas.subjects import of_type
from slime_events.analysis.query.cache import TableCache
from slime_events.analysis.query.event_tables import FACTS, Fact, FactBuilder
from slime_events.core.run.run_reader import OpenedRun
from storage.archive.log import ArchivedLog
from storage.archive.reader import ArchiveReader

_FEW = 4
"""Types of events up to which each is asked for by itself, instead of reading the whole log."""


@dataclass(frozen=True, slots=True)
class FactParts:
    """The rows of one fact: those in Parquet files, then those in memory."""

    files: tuple[Path, ...]
    table: pa.Table


@dataclass(slots=True)
class _Tail:
    batches: list[pa.RecordBatch] = field(default_factory=list)
    end: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """What of a run's log counts. depth: 0 for the run that was asked for, 1 for the one that it branched from, and so
    on. end: the last position, None for all there are. first_later: the first step that is not its own any more: a
    batch of it may be sealed before `end`, and is sealed by the run after it too. only_rollouts: nothing but prompts,
    rollouts, rewards and verdicts, of a run that another one follows.
    """

    depth: int = 0
    end: int | None = None
    first_later: int | None = None
    only_rollouts: bool = False

    def has(self, fact: str) -> bool:
        """Whether any row of this fact counts."""
        return not self.only_rollouts or is_of_rollouts(fact)

    def where(self, fact: str) -> str:
        """A condition of SQL on the rows of a fact."""
        conditions = [] if self.end is None else [f"position <= {self.end}"]
        if not self.has(fact):
            conditions.append("false")
        if self.first_later is not None and fact in _STEPS:
            conditions.append(f"step < {self.first_later}")
        return f" WHERE {' AND '.join(conditions)}" if conditions else ""


_STEPS = ("batch_sealed", "step_claimed", "step_committed")


def is_of_rollouts(fact: str) -> bool:
    """Whether a fact says how rollouts were made and judged, and nothing of training."""
    return fact.startswith(("prompt_", "rollout_", "turn_", "reward_", "group_")) or fact == "token_run"


class RunFacts:
    """The facts of the part of a run that counts."""

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

    async def load(self, names: Collection[str]) -> dict[str, FactParts]:
        """The rows of these facts, up to what is in the log now. Raises as the log and the archive do."""
        if not names:
            return {}
        end = await self.opened.log.position()
        end = end if self.part.end is None else min(end, self.part.end)
        reader = await self._archive()
        facts = [FACTS[name] for name in names if self.part.has(name)]
        files: dict[str, list[Path]] = {}
        if reader is not None:
            files = await asyncio.to_thread(self._cache.files, reader, facts, self.opened.fetch)
        await self._read_on(facts, reader.last if reader else 0, end)
        return {
            fact.name: FactParts(
                tuple(files.get(fact.name, ())),
                pa.Table.from_batches(self._tails[fact.name].batches, fact.schema),
            )
            for fact in facts
        } | {name: FactParts((), FACTS[name].schema.empty_table()) for name in names if not self.part.has(name)}

    async def _archive(self) -> ArchiveReader | None:
        """The run's archive, looked for once; None where there is none, or none of this very log."""
        if not self._looked:
            self._looked = True
            self._reader = await _archive_of(self.opened)
        return self._reader

    async def _read_on(self, facts: Sequence[Fact], archived: int, end: int) -> None:
        """Read what was said since each fact was last looked at."""
        together: dict[int, list[Fact]] = defaultdict(list)
        for fact in facts:
            tail = self._tails.setdefault(fact.name, _Tail(end=archived))
            together[tail.end].append(fact)
        for begun, some in together.items():
            if begun < end:
                await self._read(some, begun + 1, end)

    async def _read(self, facts: Sequence[Fact], start: int, end: int) -> None:
        builder = FactBuilder(
            facts, self.opened.fetch, lambda fact, batch: self._tails[fact.name].batches.append(batch)
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
        for fact in facts:
            self._tails[fact.name].end = end


async def _archive_of(opened: OpenedRun) -> ArchiveReader | None:
    """The archive to read first. Of a run with a log of its own: only where the two agree at the archive's end."""
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
