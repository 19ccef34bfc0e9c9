"""Measure how many rollouts per second `rescore` reads from an archive, grades by a rule and compares.

The archive of 2,000 steps (128,000 rollouts, 424,000 events) is synthetic. Reading it is included.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

import msgspec

from benchmarks.figure import Figure
from benchmarks.long_log import GROUPS, SAMPLES, long_log
from schemas.codec import encode
from schemas.envelope import enclose
from schemas.runs import RunStarted
from slime_events.analysis.rescore.change import make_change
from slime_events.analysis.rescore.report import Report
from slime_events.analysis.rescore.rescore import rescore
from slime_events.core.config.engine import EngineSettings
from slime_events.core.config.reward import RewardSettings
from slime_events.core.config.rollout import RolloutSettings
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.run_reader import open_run
from storage.archive.writer import SEGMENT_BYTES, ArchiveWriter
from storage.log import Recorded

STEPS = 2000
RUN = "long"


def measure(steps: int = STEPS) -> list[Figure]:
    """Return rollouts per second, including the start of the grading processes."""
    with tempfile.TemporaryDirectory() as folder:
        events = write_archive(Path(folder), steps)
        begun = time.perf_counter()
        report = asyncio.run(_rescore(f"{folder}/{RUN}"))
        seconds = time.perf_counter() - begun
    note = f"{events:,} events in {seconds:.1f} s, --rm-type exact"
    rate = report.samples.graded / seconds
    return [Figure(name="rescore by a rule", value=rate, unit="rollouts/s", target=20_000, note=note)]


def write_archive(folder: Path, steps: int) -> int:
    """Write a generated run as an archive, and return its number of events."""
    settings = msgspec.to_builtins(
        TrainSettings(
            rollout=RolloutSettings(num_rollout=steps, rollout_batch_size=GROUPS, n_samples_per_prompt=SAMPLES),
            reward=RewardSettings(rm_type="exact"),
            engine=EngineSettings(hf_checkpoint="base"),
        )
    )
    writer, position = ArchiveWriter(str(folder), RUN), 0
    for position, event in enumerate(long_log(steps), 1):
        stored = RunStarted(settings=settings, code_version="") if isinstance(event, RunStarted) else event
        envelope = enclose(RUN, stored, at=position, producer="made")
        writer.add(Recorded(position, envelope.subject, envelope, encode(envelope)))
        if writer.pending_bytes >= SEGMENT_BYTES:
            writer.seal()
    writer.seal()
    return position


async def _rescore(where: str) -> Report:
    async with open_run(where) as opened:
        return await rescore(opened, make_change(opened.settings))
