"""No segment ends between a step and its weights: a run restored from there would never get the weights."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from actors.archivist import ArchiveOutcome, SealPolicy, archive_run
from schemas.event import Event
from schemas.steps import StepCommitted
from storage.archive.reader import ArchiveReader
from storage.archive.writer import ArchiveWriter
from storage.memory_log import MemoryLog
from tests import made

AT_ONCE = SealPolicy(max_bytes=1, max_age_s=0.0, look_s=0.01)
"""Each record is a segment, if it may be."""
STEPS = 5


def step(number: int) -> list[Event]:
    digests = {"weights_digest": "w", "optimizer_digest": "o"}
    committed = made.committed(number, tokens=2, **digests)
    return [committed, made.published(number + 1, parent=number, digest="w")]


async def test_a_step_and_its_weights_are_in_one_segment(tmp_path: Path) -> None:
    log = MemoryLog("r")
    for events in ([made.started(code_version="0")], *map(step, range(STEPS))):
        await made.say(log, *events, at=time.time_ns())
    stop = asyncio.Event()
    stop.set()
    running = archive_run(log, ArchiveWriter(str(tmp_path), "r"), "archivist", stop=stop, policy=AT_ONCE)
    assert await asyncio.wait_for(running, 60) is ArchiveOutcome.STOPPED
    reader = ArchiveReader(str(tmp_path), "r")
    ends = {manifest.last for manifest in reader.segments}
    assert len(ends) > STEPS
    assert (
        not {recorded.position for recorded in reader.read() if isinstance(recorded.envelope.event, StepCommitted)}
        & ends
    )
