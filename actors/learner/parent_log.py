"""`parent_records`: the log of a run that somebody learns from, whatever becomes of the server that it is read from.

A run stops its server when it ends, and a learner may still be behind: the log is then opened again, as that of a run
that has finished, and read on from where it was.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing

from schemas.errors import DeadlineExceeded, LogUnavailable
from slime_events.core.run.participant import is_over
from slime_events.core.run.run_reader import OpenedRun, open_run
from storage.follow import Follower
from storage.log import Recorded

log = logging.getLogger(__name__)

LOOK_S = 0.5
OpenParent = Callable[[str], AbstractAsyncContextManager[OpenedRun]]


async def parent_records(
    where: str, *, deadline_s: float, open_parent: OpenParent = open_run
) -> AsyncGenerator[Recorded, None]:
    """All of it, from its first event on: an archive to its end, a run until it has ended.

    Raises DeadlineExceeded where nothing new is said for `deadline_s` by a run that has not ended, or its log does not
    answer for that long.
    """
    reader = _Reader(deadline_s)
    while True:
        try:
            async with open_parent(where) as parent, aclosing(reader.read(parent)) as records:
                async for recorded in records:
                    yield recorded
            return
        except LogUnavailable as error:
            reader.check_news(where)
            log.warning("the log of %s went away at position %d and is opened again: %s", where, reader.position, error)
            await asyncio.sleep(LOOK_S)


class _Reader:
    """Knows how far it is. position: of the last event that was handed out."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._over, self._news = False, time.monotonic()
        self.position = 0

    def check_news(self, where: str) -> None:
        """Raises DeadlineExceeded where there has been none for too long."""
        if time.monotonic() - self._news > self._deadline_s:
            raise DeadlineExceeded(
                f"the run at {where} has said nothing for {self._deadline_s:.0f} s and has not ended: see whether it "
                "is on; the same command goes on from here"
            )

    async def read(self, parent: OpenedRun) -> AsyncGenerator[Recorded, None]:
        """From where it is to the end of the archive, or of the run."""
        if parent.folder is None:
            async for recorded in parent.log.read(self.position + 1):
                yield self._take(recorded)
            return
        async with Follower(parent.log, self.position + 1) as follower:
            while not (self._over and follower.caught_up):
                for recorded in await follower.next(wait_s=LOOK_S):
                    yield self._take(recorded)
                    self._news = time.monotonic()  # after whoever takes it has taken its time
                self.check_news(parent.where)

    def _take(self, recorded: Recorded) -> Recorded:
        self._over = is_over(self._over, recorded.envelope.event)
        self.position = recorded.position
        return recorded
