"""`EngineInTurns`: the weights of an engine that uses its devices in turns with the trainer.

    the trainer has its turn -> no load is in progress -> pause all rollouts -> the engine rests -> device.released
    the engines' turn        -> device.taken -> the engine wakes -> load the newest version -> the rollouts continue

The cache of computed tokens is lost, so a rollout that continues computes its tokens again.
"""

import asyncio
from typing import Any

from serve_apps.engines.engine import Engine
from serve_apps.engines.engine_weights import NO_WEIGHTS, EngineWeights
from slime_events.core.devices.device_share import DeviceShare
from slime_events.core.run.participant import Participant
from storage.cancellation import end_all
from storage.group_commit import GroupCommit


class EngineInTurns(EngineWeights):
    """The weights of one engine. share: holds the devices when `switch` begins. more: arguments of `EngineWeights`."""

    def __init__(
        self, worker: Participant, engine: Engine, commit: GroupCommit, *, share: DeviceShare, **more: Any
    ) -> None:
        super().__init__(worker, engine, commit, **more)
        self._share = share

    async def switch(self) -> None:
        """Load the chosen version in the engines' turns, until cancelled or until the run is over."""
        while await self._share.take():
            self._next = None
            self._notify()
            switching, called = asyncio.create_task(super().switch()), asyncio.create_task(self._share.called())
            try:
                await asyncio.wait({switching, called}, return_when=asyncio.FIRST_COMPLETED)
                if not called.done():
                    switching.result()
                called.result()
                async with self._loading:  # a load in progress ends; one that waits for files does not begin
                    await end_all(switching)
                    await self._rest()
            finally:
                await end_all(switching, called)

    async def _rest(self) -> None:
        """Pause all rollouts, and release the devices."""
        self._next = NO_WEIGHTS
        self._notify()
        await self._pause(NO_WEIGHTS)
        self._version = NO_WEIGHTS
        await self._share.release()
