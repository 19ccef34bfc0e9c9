"""Measure the fold of a log of 10^6 events, live and from its archive, and the seek to any of its positions.

The log of 4,700 steps is synthetic, on a real server and in an archive. Seconds include reading, checks and decoding.
Seeks use a seek index, whose creation is in the note.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

from benchmarks.figure import Better, Figure
from benchmarks.kept_log import RUN, fill_archive, fill_log
from benchmarks.long_log import PER_STEP
from slime_events.analysis.timetravel.log_position import Anchor, LogPosition
from slime_events.analysis.timetravel.seek_index import EVERY
from slime_events.analysis.timetravel.timeline import Timeline
from slime_events.core.state.run import state_digest
from storage.archive.log import ArchivedLog
from storage.archive.reader import ArchiveReader
from storage.jetstream.log import JetStreamLog
from storage.log import Readable
from storage.nats.server import NatsServer
from tests.state.whole_log import fold

EVENTS = 1_000_000
SEEKS = 100
SEED = 1
AT_MOST_S = 1.0
T = TypeVar("T")


def measure(events: int = EVENTS) -> list[Figure]:
    """Measure with reading, checking and decoding, but without making the log and opening server and archive."""
    return asyncio.run(_measure(max(1, events // PER_STEP)))


async def _measure(steps: int) -> list[Figure]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        fill_archive(f"{folder}/archive", steps)
        archived = ArchivedLog(ArchiveReader(f"{folder}/archive", RUN), RUN)
        digest, figures = await _of("archive", archived, folder / "seek-archive", target=500_000.0)
        async with await NatsServer.start(folder / "nats") as server:
            log = await JetStreamLog.open(server.url, RUN)
            try:
                await fill_log(log, steps)
                again, live = await _of("live log", log, folder / "seek-live", target=50_000.0)
            finally:
                await log.close()
    if again != digest:
        raise AssertionError("the archive and its log fold to different states")
    return [*live, *figures]


async def _of(name: str, log: Readable, folder: Path, target: float) -> tuple[str, list[Figure]]:
    events = await log.position()
    state, seconds = await _timed(fold(log))
    timeline, indexing = await _timed(Timeline(log, folder).open())
    seeks = []
    for position in random.Random(SEED).choices(range(1, events + 1), k=SEEKS):
        moment, took = await _timed(timeline.seek(LogPosition(Anchor.POSITION, position)))
        if moment.position != position:
            raise AssertionError(f"seek to position {position} returned position {moment.position}")
        seeks.append(took)
    p95 = statistics.quantiles(seeks, n=20)[-1]
    note = f"of {SEEKS} positions; an index with a point every {EVERY} events, built in {indexing:.1f} s"
    return state_digest(state), [
        Figure(name=f"fold, {name}", value=events / seconds, unit="events/s", target=target, note=f"{events} events"),
        Figure(name=f"seek, {name}, p95", value=p95, unit="s", target=AT_MOST_S, better=Better.LOWER, note=note),
    ]


async def _timed(call: Awaitable[T]) -> tuple[T, float]:
    begun = time.perf_counter()
    return await call, time.perf_counter() - begun
