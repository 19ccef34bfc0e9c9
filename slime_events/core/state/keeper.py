"""`StateKeeper`: brings a fold near the end of its log when a process starts, and later stores snapshots of it.
`LatestState`: the state of a run, for a process that needs it only now and then.

    newest snapshot -> the archive's events after it -> the log's events after those -> the process follows the log

Snapshot and archive only save time: an event of the log proves that they belong to its history. Reading in blocks takes
a fraction of the time of following, so a start without a snapshot is short too.
"""

import asyncio
import contextlib
import logging
from typing import Generic, TypeVar

from schemas.errors import NoSpace, SlimeEventsError, StoreUnavailable
from slime_events.core.state.run import RunState
from slime_events.core.state.snapshot import Snapshot, Snapshots
from slime_events.core.state.state_fold import StateFold
from storage.event_block import HasEventBlocks
from storage.hash_chain import link_all
from storage.log import Readable

log = logging.getLogger(__name__)

EVERY = 2_000
"""Default of events between two snapshots: a process folds 2,000 events in a fraction of a second."""
IN_BLOCKS = 10_000
"""Number of events from which reading in blocks is faster."""

S = TypeVar("S", bound=Snapshot)


class StateKeeper(Generic[S]):
    """Keeps the state of a process.

    snapshots: None stores nothing. archive: its URL; None reads the log alone. every: events between two snapshots. The
    caller encodes a snapshot (a few ms); a thread compresses and writes it. If a write fails, only the next start is
    slower, so the failure is a warning.
    """

    def __init__(self, snapshots: Snapshots[S] | None, archive: str | None = None, *, every: int = EVERY) -> None:
        self._snapshots, self._archive, self._every = snapshots, archive, every
        self._stored = 0
        self._writing: asyncio.Task[None] | None = None

    async def restore(self, fold: StateFold, events: Readable) -> None:
        """Bring a new fold near the end of the log, so that following the log from there takes no time."""
        newest = await self._snapshots.newest(events) if self._snapshots else None
        if newest is not None:
            fold.restore(newest)
            self._stored = newest.position
        end = await events.position()
        if self._archive is not None and end - fold.state.position >= IN_BLOCKS:
            try:
                await _catch_up_from_archive(self._archive, fold, events)
            except SlimeEventsError as error:  # intact segments are folded in, the log has the rest
                log.warning("reading the archive stops: %s", error)
        if isinstance(events, HasEventBlocks) and end - fold.state.position >= IN_BLOCKS:
            await _fold_blocks(fold, events)
        log.info("starts at position %d, of which a snapshot had %d", fold.state.position, self._stored)

    def observe(self, fold: StateFold) -> None:
        """Store a snapshot if it is due."""
        position = fold.state.position
        # With many waiting prompts a snapshot is large: it takes as long as folding as many events as it has groups.
        due = position - self._stored >= max(self._every, len(fold.state.groups)) and (
            self._writing is None or self._writing.done()
        )
        if due and self._snapshots is not None:
            self._stored = position
            self._writing = asyncio.create_task(self._write(self._snapshots, position, fold.snapshot()))

    async def close(self, fold: StateFold) -> None:
        """Store the last snapshot and wait until it is written."""
        if self._writing is not None:
            await self._writing
        if self._snapshots is not None and fold.state.position > self._stored:
            await self._write(self._snapshots, fold.state.position, fold.snapshot())

    async def _write(self, snapshots: Snapshots[S], position: int, encoded: bytes) -> None:
        try:
            await asyncio.to_thread(snapshots.write, position, encoded)
        except (NoSpace, StoreUnavailable, OSError) as error:
            log.warning("no snapshot of position %d: %s", position, error)


class LatestState:
    """Reads the log on each call instead of following it: idle processes cost nothing, and events are read in blocks.

    keeper: keeper of the conductor's snapshots, to start from.
    """

    def __init__(self, log: Readable, keeper: StateKeeper[Snapshot] | None = None) -> None:
        self._log, self._keeper = log, keeper or StateKeeper(None)
        self._fold = StateFold(log.run)
        self._reading = asyncio.Lock()

    async def __call__(self) -> RunState:
        """Return the state with all events in the log. It is the same object each time. Raises StorageError."""
        async with self._reading:
            if not self._fold.state.events:
                await self._keeper.restore(self._fold, self._log)
            await fold_to_end(self._fold, self._log)
            return self._fold.state


async def _catch_up_from_archive(url: str, fold: StateFold, events: Readable) -> None:
    """Fold in the archive's events, if the log has the event at the end of the archive's last segment."""
    from storage.archive.log import ArchivedLog  # most starts have a snapshot and need no archive
    from storage.archive.reader import ArchiveReader

    archived = ArchivedLog(await asyncio.to_thread(ArchiveReader, url, events.run), events.run)
    last = archived.reader.segments[-1] if archived.reader.segments else None
    if last is None or not last.chain or last.last - fold.state.position < IN_BLOCKS:
        return
    async with contextlib.aclosing(events.read(await archived.position())) as read:  # type: ignore[type-var]
        recorded = await anext(read, None)
    before, chain = bytes.fromhex(last.before), bytes.fromhex(last.chain)
    if recorded is None or link_all(before, (recorded.data,)) != (before, chain):
        log.warning("the archive at %s does not belong to the history of the log", archived.reader.url)
        return
    await _fold_blocks(fold, archived)


async def fold_to_end(fold: StateFold, events: Readable) -> None:
    """Fold in the rest of the log, in blocks if the log can read them."""
    if isinstance(events, HasEventBlocks):
        await _fold_blocks(fold, events)
        return
    async with contextlib.aclosing(events.read(fold.state.position + 1)) as read:  # type: ignore[type-var]
        async for recorded in read:
            fold.apply(recorded)


async def _fold_blocks(fold: StateFold, events: HasEventBlocks) -> None:
    chain = bytes.fromhex(fold.state.chain)
    async with contextlib.aclosing(events.event_blocks(fold.state.position + 1, chain, None)) as blocks:
        async for block in blocks:
            fold.apply_block(block)
            await asyncio.sleep(0)
