"""Measure how long the trainer waits for rollouts of long-tailed lengths, in a run at each staleness.

Each run uses all real shells over the in-memory log, a scripted engine (`benchmarks.long_tail`), and a trainer that
takes as long for a step as the engine for a response at p99. The share comes from the run's log, as in
`slime-events show RUN`.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from benchmarks.figure import Better, Figure
from benchmarks.long_tail import SPREAD, LongTail
from schemas.rollouts import Sampling
from serve_apps.rollouts.rollout import ChunkRule
from slime_events.model.progress import Progress
from tests.scripted_engine import Script
from tests.simulation.simulation import Simulation, make_plan

MEDIAN, MOST = 32, 640
SECONDS_PER_TOKEN = 0.001
TRAIN_S = MEDIAN * SPREAD * SECONDS_PER_TOKEN
TARGET, TARGET_AT = 0.1, 2
"""Share of the time that the trainer may wait, and the staleness to which this target applies."""
DEADLINE_S = 300.0


def measure(steps: int = 30, train_s: float = TRAIN_S) -> list[Figure]:
    """Return the share at staleness 0, 1 and 2."""
    figures = []
    for staleness in range(TARGET_AT + 1):
        progress = _run(steps, staleness, train_s)
        seconds = sum(line.seconds for line in progress.figures.steps[1:]) / len(progress.figures.steps[1:])
        figures.append(
            Figure(
                name=f"trainer idle, staleness {staleness}",
                value=progress.trainer_idle,
                unit="share",
                target=TARGET if staleness == TARGET_AT else None,
                better=Better.LOWER,
                note=f"{seconds:.2f} s a step, {train_s:.2f} s of them training; {steps} steps, responses of "
                f"{MEDIAN} tokens in the median, {MEDIAN * SPREAD:.0f} at p99, {MOST} at most",
            )
        )
    return figures


def _run(steps: int, staleness: int, train_s: float) -> Progress:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_simulate(Path(folder), steps, staleness, train_s))


async def _simulate(folder: Path, steps: int, staleness: int, train_s: float) -> Progress:
    plan = make_plan(
        steps=steps,
        groups=8,
        samples=4,
        max_staleness=staleness,
        in_prompt_order=staleness == 0,
        sampling=Sampling(max_new_tokens=MOST),
    )
    script = Script(chunk=16, seconds_per_chunk=16 * SECONDS_PER_TOKEN)
    prompts = [f"prompt {n}" for n in range(steps * plan.groups)]
    async with Simulation(folder, plan, prompts=prompts, train_s=train_s, deadline_s=60.0) as sim:
        sim.start_engine(LongTail(script, MEDIAN), room=1024, rule=ChunkRule(64, 100.0))
        await sim.finish(within_s=DEADLINE_S)
    progress = Progress("sim")
    for recorded in sim.log.records:
        progress.apply(recorded)
    return progress
