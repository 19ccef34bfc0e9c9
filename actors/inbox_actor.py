"""`InboxActor`: what takes in prompts from outside, as a role of its run."""

import asyncio
import time
from functools import partial
from pathlib import Path

from actors.doors import Room, doors_of
from actors.fate_teller import FateTeller
from actors.inbox import Inbox
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.join import join_run
from slime_events.core.run.run_address import RunAddress
from slime_events.core.run.run_end import until_over
from slime_events.core.state.keeper import StateKeeper
from slime_events.core.state.latest_state import LatestState
from slime_events.core.state.snapshot import Snapshots
from storage.blobs import BlobStore
from storage.payloads import offload_async


class InboxActor:
    """A process of its own, with the lowest priority: a flood of prompts takes no processor from the run itself."""

    async def run(self, address: RunAddress, settings: TrainSettings) -> None:
        """Take in what comes, and tell what becomes of it, to the end of the run."""
        begun = time.perf_counter()
        async with join_run(address, "inbox") as worker:
            snapshots = Snapshots(Path(address.folder) / "snapshots")
            state = LatestState(worker.log, StateKeeper(snapshots, address.archive_url))
            opens = partial(asyncio.to_thread, doors_of, settings, worker.log)
            offload = partial(offload_async, blobs=BlobStore(address.blob_url))
            inbox = Inbox(worker, opens, state, address.nats, offload, Room.of(settings).left)
            async with FateTeller(worker, address.nats), inbox:
                await worker.join({"ready": time.perf_counter() - begun})
                await until_over(worker)
