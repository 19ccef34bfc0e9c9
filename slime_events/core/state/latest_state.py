"""`LatestState`: the state of a run, for a process that asks for it now and then."""

import asyncio

from slime_events.core.state.keeper import StateKeeper, fold_to_end
from slime_events.core.state.run import RunState
from slime_events.core.state.snapshot import Snapshot
from slime_events.core.state.state_fold import StateFold
from storage.log import Readable


class LatestState:
    """It reads the log when it is asked, and does not follow it: a process that is not asked costs its run nothing, and
    many events at once are read in blocks. keeper: of the conductor's snapshots, with which it begins.
    """

    def __init__(self, log: Readable, keeper: StateKeeper[Snapshot] | None = None) -> None:
        self._log, self._keeper = log, keeper or StateKeeper(None)
        self._fold = StateFold(log.run)
        self._reading = asyncio.Lock()

    async def __call__(self) -> RunState:
        """With all events that are in the log by now. The same object each time. Raises StorageError."""
        async with self._reading:
            if not self._fold.state.events:
                await self._keeper.restore(self._fold, self._log)
            await fold_to_end(self._fold, self._log)
            return self._fold.state
