"""Measure the verified fold of the demo's log from position 0, and the replay of its decisions from the archive.

The fold includes reading and decoding, and its digest is compared with that of the live run.
"""

from __future__ import annotations

import asyncio
import time

from benchmarks.demo_run import STEPS, demo_run
from benchmarks.figure import Figure
from schemas.errors import TrainerError
from slime_events.analysis.replay.replay import replay
from slime_events.core.run.run_reader import open_run


def measure(steps: int = STEPS) -> list[Figure]:
    """Return events per second, including reading and decoding."""
    run = demo_run(0, steps)
    note = f"{run.summary['events']} events"
    decisions = asyncio.run(decisions_again(str(run.archive)))
    return [
        Figure(name="replay of the log", value=run.replay, unit="events/s", note=note),
        Figure(name="decisions made again", value=decisions, unit="events/s", note=note),
    ]


async def decisions_again(archive: str) -> float:
    """Return events per second. Raises TrainerError if a decision differs."""
    async with open_run(archive) as opened:
        begun = time.perf_counter()
        report = await replay(opened, recorded_prompts=True)
        seconds = time.perf_counter() - begun
    if not report.is_equal:
        raise TrainerError(f"a decision of the run differs: {report.differences[0]}")
    return report.events / seconds
