"""Measure the lineage of one weight version in the log of a long run, live and from its archive.

The log of 4,700 steps is synthetic. The figure is the slowest of 20 versions over the run.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path

from benchmarks.figure import Better, Figure
from benchmarks.kept_log import RUN, fill_archive, fill_log
from benchmarks.long_log import GROUPS, PER_STEP, SAMPLES
from schemas.arrays import unpack
from slime_events.analysis.lineage.lineage import Kind, LineageQuery
from slime_events.analysis.lineage.resolve import lineage
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.run_reader import OpenedRun, open_run
from storage.jetstream.log import JetStreamLog
from storage.log import Readable
from storage.nats.server import NatsServer

EVENTS = 1_000_000
QUESTIONS = 20
AT_MOST_S = 1.0


def measure(events: int = EVENTS) -> list[Figure]:
    """Return the slowest seconds for versions across the run, live and from the archive."""
    return asyncio.run(_measure(max(QUESTIONS, events // PER_STEP)))


async def _measure(steps: int) -> list[Figure]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        fill_archive(f"{folder}/archive", steps)
        live = await _live(folder / "nats", steps)
        kept = os.environ.get("XDG_CACHE_HOME")
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        try:
            begun = time.perf_counter()
            async with open_run(f"{folder}/archive/{RUN}") as opened:
                await _ask(opened, 1)
                first = time.perf_counter() - begun
            begun = time.perf_counter()
            async with open_run(f"{folder}/archive/{RUN}") as opened:
                opening = time.perf_counter() - begun
                archived = await _slowest(opened, steps)
        finally:
            os.environ.pop("XDG_CACHE_HOME")
            if kept is not None:
                os.environ["XDG_CACHE_HOME"] = kept
    note = f"{steps * PER_STEP} events, {GROUPS * SAMPLES} samples a version; the slowest of {QUESTIONS} over the run"
    return [
        _figure("lineage of a version, live log", live, note, AT_MOST_S),
        _figure("lineage of a version, archive", archived + opening, f"{note}, with opening the archive", AT_MOST_S),
        _figure("the same, never looked at before", first, "version 1, opening and indexing every segment"),
    ]


def _figure(name: str, seconds: float, note: str, target: float | None = None) -> Figure:
    return Figure(name=name, value=seconds, unit="s", target=target, better=Better.LOWER, note=note)


async def _slowest(opened: OpenedRun, steps: int) -> float:
    seconds = []
    for number in range(QUESTIONS):
        begun = time.perf_counter()
        await _ask(opened, 1 + number * (steps - 1) // (QUESTIONS - 1))
        seconds.append(time.perf_counter() - begun)
    return max(seconds)


async def _ask(opened: OpenedRun, version: int) -> None:
    result = await lineage(opened, LineageQuery(kind=Kind.VERSION, value=str(version)))
    if len(result.samples) != GROUPS * SAMPLES or not all(sample.trained_into == version for sample in result.samples):
        raise AssertionError(f"version {version} has the lineage of {len(result.samples)} samples")


async def _live(folder: Path, steps: int) -> float:
    async with await NatsServer.start(folder) as server:
        log = await JetStreamLog.open(server.url, RUN)
        await fill_log(log, steps)
        readable: Readable = log
        seconds = await _slowest(OpenedRun(readable, TrainSettings(), unpack, None, ""), steps)
        await log.close()
    return seconds
