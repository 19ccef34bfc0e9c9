"""`InboxActor`: the process of a run that accepts prompts from outside."""

from __future__ import annotations

import asyncio
import gc
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.process_environment import NICE_IDLE, yield_to_others
from slime_events.core.run.run_address import RunAddress
from storage.log import EventLog

if TYPE_CHECKING:
    from actors.inbox import Doors


class InboxActor:
    """Runs the inbox in its own process. From the first message on, the process has idle priority: a flood of prompts
    slows its senders, not the run.
    """

    async def run(self, address: RunAddress, settings: TrainSettings) -> None:
        """Accept messages and notify producers until the end of the run."""
        begun = time.perf_counter()
        from actors.doors import Room  # imports happen here at the normal priority
        from actors.fate_teller import FateTeller
        from actors.inbox import Inbox
        from slime_events.core.run.join import join_run
        from slime_events.core.run.run_end import until_over
        from slime_events.core.state.keeper import LatestState, StateKeeper
        from slime_events.core.state.snapshot import Snapshot, Snapshots
        from storage.blobs import BlobStore
        from storage.payloads import offload_async

        async with join_run(address, "inbox") as worker:
            keeper = StateKeeper[Snapshot](Snapshots(Path(address.folder) / "snapshots"), address.archive_url)
            state = LatestState(worker.log, keeper)
            opens = partial(asyncio.to_thread, _open, settings, worker.log)
            offload = partial(offload_async, blobs=BlobStore(address.blob_url))
            inbox = Inbox(worker, opens, state, address.nats, offload, Room.of(settings).left)
            async with FateTeller(worker, address.nats), inbox:
                await worker.join({"ready": time.perf_counter() - begun})
                await until_over(worker)


def _open(settings: TrainSettings, log: EventLog) -> Doors:
    """Load the doors at normal priority, since the first sender waits for them, then switch to idle priority."""
    from actors.doors import doors_of

    doors = doors_of(settings, log)
    gc.freeze()  # objects of imported packages are never garbage: scanning them costs a sixth of the time
    yield_to_others(NICE_IDLE)
    return doors
