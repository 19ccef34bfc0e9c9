"""`StateKeeper`: puts the conductor's state away now and then, beside its work."""

from __future__ import annotations

import asyncio
import logging

from schemas.errors import NoSpace, StoreUnavailable
from slime_events.core.state.run import RunState
from slime_events.core.state.snapshot import take
from slime_events.core.state.snapshots import Snapshots
from storage.log import EventLog

log = logging.getLogger(__name__)

EVERY = 2_000
"""Events between two snapshots: what a conductor that starts has to fold, a fraction of a second. The state is a few
percent of the bytes that so many events have.
"""


class StateKeeper:
    """snapshots: None keeps nothing. every: events between two snapshots.

    The state is encoded where it is called (a few ms), compressed and written in a thread. A write that fails costs
    nothing but time at the next start, so it is a warning.
    """

    def __init__(self, snapshots: Snapshots | None, *, every: int = EVERY) -> None:
        self._snapshots, self._every = snapshots, every
        self._kept = 0
        self._writing: asyncio.Task[None] | None = None

    async def load(self, events: EventLog) -> RunState:
        """The newest state that is of this log, or that of an empty one."""
        found = await self._snapshots.newest(events) if self._snapshots else None
        if found is None:
            return RunState(run=events.run)
        log.info("begins with the snapshot of position %d", found.position)
        self._kept = found.position
        return found.state

    def look(self, state: RunState, before: str) -> None:
        """Keep the state, if it is time. before: the chain up to the event before its last."""
        if state.events - self._kept >= self._every and (self._writing is None or self._writing.done()):
            self._keep(state, before)

    async def close(self, state: RunState, before: str) -> None:
        """Keep the last state, and wait until it is written."""
        if self._writing is not None:
            await self._writing
        if state.events > self._kept:
            self._keep(state, before)
        if self._writing is not None:
            await self._writing

    def _keep(self, state: RunState, before: str) -> None:
        if self._snapshots is not None:
            self._kept = state.events
            self._writing = asyncio.create_task(self._write(self._snapshots, state.events, take(state, before)))

    async def _write(self, snapshots: Snapshots, position: int, taken: bytes) -> None:
        try:
            await asyncio.to_thread(snapshots.write, position, taken)
        except (NoSpace, StoreUnavailable, OSError) as error:
            log.warning("no snapshot of position %d: %s", position, error)
