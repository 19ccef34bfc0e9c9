"""`join_run`, `open_log`: how a process of any role joins a run."""

import asyncio
import contextlib
import gc
import os
from collections.abc import AsyncIterator
from pathlib import Path

from schemas.trust import trusting
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_address import RunAddress
from slime_events.core.telemetry.printed import printed_too
from slime_events.core.telemetry.process_log import setup_logging
from slime_events.core.telemetry.telemetry import Telemetry, TracedLog, span_file
from storage.file_access import take_access
from storage.jetstream.log import RETRY_S, JetStreamLog


@contextlib.asynccontextmanager
async def join_run(address: RunAddress, role: str) -> AsyncIterator[Participant]:
    """A participant of the run: its log is open, its spans are exported, its process log is in the run folder, with
    what it prints.
    """
    os.environ.update(address.secrets)
    take_access(address.file_access)
    folder = Path(address.folder)
    setup_logging(role, folder / "logs")
    spans = span_file(folder, role, os.getpid())
    telemetry = Telemetry.start(role, address.run, address.otlp_endpoint, spans, address.trace_share)
    log = await open_log(address)
    gc.freeze()  # what a start makes is no garbage: looking through it again and again takes a tenth of the time
    try:
        with trusting(), printed_too():
            yield Participant(
                TracedLog(log, telemetry), role, trace_share=address.trace_share, incarnation=address.incarnation
            )
    finally:
        await log.close()
        await asyncio.to_thread(telemetry.shutdown)


async def open_log(address: RunAddress) -> JetStreamLog:
    """The run's log. A process that starts while NATS is away waits for it as long as those that are there already."""
    return await JetStreamLog.open(address.nats, address.run, deadline_s=RETRY_S, create=False)
