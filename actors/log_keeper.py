"""`LogKeeper`: lets events leave a run's log for the archive, but for its newest steps and what is still needed.

`may_leave` decides. Whoever asks for an event that has left gets it all the same (storage/jetstream/long_stream.py), so
what stays is a matter of speed, but for the queues: nothing that an engine may still have to do leaves.
"""

import asyncio
import logging
from collections.abc import Callable

from schemas.errors import ArchiveDamaged
from schemas.steps import StepCommitted
from schemas.subjects import of_type
from slime_events.core.state.run import RunState
from slime_events.core.state.snapshot import Snapshot, Snapshots
from storage.archive.reader import ArchiveReader
from storage.jetstream.log import JetStreamLog

logger = logging.getLogger(__name__)


def may_leave(archived: int, done: int, kept_after: int, state: RunState) -> int:
    """The last position that nobody who works on the run needs.

    archived: what the archive holds. done: what the queue of requests is done with. kept_after: the commit before the
    steps that are kept. state: of the newest snapshot, which is read with the event at its position and whose groups
    have no end yet.
    """
    open_ = (group.position for group in state.groups.values())
    return min(archived, done, kept_after, min(open_, default=state.events) - 1, state.events - 1)


class LogKeeper:
    """steps: whose events stay. queue: of this incarnation's requests. open_archive: reads what is sealed by now."""

    def __init__(
        self,
        log: JetStreamLog,
        snapshots: Snapshots[Snapshot],
        open_archive: Callable[[], ArchiveReader],
        *,
        steps: int,
        queue: str,
    ) -> None:
        self._log, self._snapshots, self._open_archive = log, snapshots, open_archive
        self._steps, self._queue = steps, queue
        self._left, self._is_given_up = 0, False

    async def let_go(self, archived: int) -> None:
        """Let go what may leave now. archived: the last position that the archive holds.

        An archive that is damaged keeps the log as it is, and is no reason to end a run. Raises LogUnavailable,
        StoreUnavailable.
        """
        # What costs little first: most of the time nothing new may leave.
        kept_after, done = await self._kept_after(), await self._log.done_up_to(self._queue)
        if self._is_given_up or min(archived, kept_after, done) <= self._left:
            return
        snapshot = await self._snapshots.newest(self._log)
        upto = may_leave(archived, done, kept_after, snapshot.state) if snapshot else 0
        if upto <= self._left:
            return
        try:
            await self._log.remove_archived(await asyncio.to_thread(self._open_archive), upto)
        except ArchiveDamaged as error:
            self._is_given_up = True
            logger.error("nothing leaves the log any more, as the archive does not hold it: %s", error)
            return
        logger.info("positions %d to %d have left the log for the archive", self._left + 1, upto)
        self._left = upto

    async def _kept_after(self) -> int:
        """The position of the newest commit that is not of a kept step; 0 where all are kept."""
        committed = of_type(self._log.run, "step.committed")
        newest = await self._log.last(committed)
        if newest is None or not isinstance(newest.envelope.event, StepCommitted):
            return 0
        before = await self._log.last(committed.replace("*", str(newest.envelope.event.step - self._steps)))
        return before.position if before else 0
