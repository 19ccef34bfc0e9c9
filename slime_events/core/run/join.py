"""`join_run` and `open_log`: how a process of any role joins a run."""

import asyncio
import contextlib
import gc
import os
from collections.abc import AsyncIterator
from pathlib import Path

from schemas.trust import trusting
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_address import RunAddress
from slime_events.core.telemetry.printed import copy_output_to_log
from slime_events.core.telemetry.process_log import setup_logging
from slime_events.core.telemetry.telemetry import Telemetry, TracedLog
from storage.file_access import take_access
from storage.jetstream.log import RETRY_S, JetStreamLog


@contextlib.asynccontextmanager
async def join_run(address: RunAddress, role: str) -> AsyncIterator[Participant]:
    """Yield a participant of the run, with its log open and its spans exported.

    The process log in the run folder also has what the process prints.
    """
    os.environ.update(address.secrets)
    take_access(address.file_access)
    folder = Path(address.folder)
    setup_logging(role, folder / "logs")
    telemetry = Telemetry.start(role, address.run, address.otlp_endpoint, address.trace_share)
    log = await open_log(address)
    gc.freeze()  # objects of the start are no garbage: scanning them repeatedly takes a tenth of the time
    try:
        with trusting(), copy_output_to_log():
            yield Participant(
                TracedLog(log, telemetry), role, trace_share=address.trace_share, incarnation=address.incarnation
            )
    finally:
        await log.close()
        await asyncio.to_thread(telemetry.shutdown)


async def open_log(address: RunAddress) -> JetStreamLog:
    """Open the run's log. If NATS is down, waits for it as long as processes that are already connected."""
    return await JetStreamLog.open(address.nats, address.run, deadline_s=RETRY_S, create=False)
