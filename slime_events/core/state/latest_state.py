"""`LatestState`: the state of a run, for a process that needs it only now and then."""

import asyncio

from slime_events.core.state.keeper import StateKeeper, fold_to_end
from slime_events.core.state.run import RunState
from slime_events.core.state.snapshot import Snapshot
from slime_events.core.state.state_fold import StateFold
from storage.log import Readable


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
