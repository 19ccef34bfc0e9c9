"""`LogKeeper`: removes archived events from a run's log, except the newest steps and events that are still needed.

`last_removable` decides. A reader gets a removed event from the archive (storage/jetstream/long_stream.py), so the
choice affects only speed. The exception is the request queue: requests that an engine may still take are never removed.
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


def last_removable(archived: int, done: int, kept_after: int, state: RunState) -> int:
    """Return the last position that no process of the run needs.

    archived: last position in the archive. done: last position that the request queue has finished. kept_after:
    position of the commit before the kept steps. state: of the newest snapshot, which is read with the event at its
    position; its groups are still open.
    """
    open_ = (group.position for group in state.groups.values())
    return min(archived, done, kept_after, min(open_, default=state.events) - 1, state.events - 1)


class LogKeeper:
    """Removes archived events from the log.

    open_archive: opens the archive with all segments sealed so far. steps: number of newest steps whose events stay.
    queue: this incarnation's request queue.
    """

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
        self._removed, self._is_given_up = 0, False

    async def trim(self, archived: int) -> None:
        """Remove events that nothing needs. archived: the last position in the archive.

        If the archive is damaged, the log stays as it is and the run continues. Raises LogUnavailable,
        StoreUnavailable.
        """
        # The cheap checks come first: most of the time there is nothing to remove.
        kept_after, done = await self._kept_after(), await self._log.done_up_to(self._queue)
        if self._is_given_up or min(archived, kept_after, done) <= self._removed:
            return
        snapshot = await self._snapshots.newest(self._log)
        upto = last_removable(archived, done, kept_after, snapshot.state) if snapshot else 0
        if upto <= self._removed:
            return
        try:
            await self._log.remove_archived(await asyncio.to_thread(self._open_archive), upto)
        except ArchiveDamaged as error:
            self._is_given_up = True
            logger.error("the archive is damaged, so no more events are removed from the log: %s", error)
            return
        logger.info("removed archived positions %d to %d from the log", self._removed + 1, upto)
        self._removed = upto

    async def _kept_after(self) -> int:
        """Return the position of the newest commit whose step is not kept; 0 if all steps are kept."""
        run = self._log.run
        newest = await self._log.last(of_type(run, "step.committed"))
        if newest is None or not isinstance(newest.envelope.event, StepCommitted):
            return 0
        before = await self._log.last(of_type(run, "step.committed", str(newest.envelope.event.step - self._steps)))
        return before.position if before else 0
