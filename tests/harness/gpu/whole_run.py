"""A whole run over a log in memory whose trainer is killed: scripted engine, real rank in a process of its own."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any

from actors.trainer.local_ranks import LocalRanks, local_ranks
from schemas.checkpoints import CheckpointSaved
from schemas.errors import RankLost
from schemas.steps import StepCommitted
from schemas.trainers import TrainerRestored
from schemas.weights import WeightsPublished
from storage.weights.stored_version import verify
from tests.harness.gpu.report import Row
from tests.harness.gpu.scene import MIDDLE, Scene, whole_settings
from tests.harness.history.checker import check
from tests.scripted_engine import Script
from tests.simulation.simulation import Simulation, make_plan

STEPS = 6
SAVED_EVERY = 2
WAYS: dict[str, dict[str, Any]] = {"--deterministic-mode": {"deterministic_mode": True}, "default": {}}


def kill(ranks: LocalRanks) -> None:
    """Kill the rank's process with signal 9."""
    for process in ranks._processes:
        process._child.kill()


async def run(scene: Scene, name: str) -> None:
    """Kill the trainer after its third step; another continues."""
    way = {"bf16": True, **WAYS[name]} if scene.on_gpu else {}
    settings = whole_settings(scene.model("middle"), **way)
    folder = scene.folder / f"run-{name.strip('-')}"
    folder.mkdir()
    plan = make_plan(steps=STEPS, checkpoint_every=SAVED_EVERY)
    start = time.perf_counter()
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(local_ranks(settings))
        sim = await stack.enter_async_context(Simulation(folder, plan, ranks=first, deadline_s=120.0))
        sim.start_engine(Script(chunk=8, seconds_per_chunk=0.002, vocabulary=MIDDLE["vocab_size"]), lease_s=5.0)
        await sim.until(StepCommitted, 3)
        trainer = sim.disown_trainer()
        kill(first)
        ended = (await asyncio.gather(trainer, return_exceptions=True))[0]
        second = await stack.enter_async_context(local_ranks(settings))
        sim.start_trainer(second)
        phase = await sim.finish()
    seconds = time.perf_counter() - start
    how = "RankLost" if isinstance(ended, RankLost) else f"{type(ended).__name__}: {ended}"
    restored = sim.events(TrainerRestored)
    figures: dict[str, float | int | str] = {
        "seconds": seconds,
        "steps": len(sim.events(StepCommitted)),
        "versions published": len(sim.events(WeightsPublished)),
        "checkpoints": len(sim.events(CheckpointSaved)),
        "weights": ", ".join(str(event.weights.value) for event in restored),
        "optimizer": ", ".join(str(event.optimizer.value) for event in restored),
        "trained again": sum(event.retrained for event in restored),
        "of them with other digests": sum(event.differing for event in restored),
        "recovery, s": sum(event.seconds for event in restored),
    }
    wrong = check([(record.position, record.subject, record.data) for record in sim.log.records])
    for event in sim.events(WeightsPublished):
        verify(event.url, event.digest)
    seen = (
        f"{phase.name.lower()}; the trainer ended with {how}; the log {'keeps its rules' if not wrong else wrong[:2]}"
    )
    Row(f"a run, trainer killed, {name}", seen, figures).say()


def look(scene: Scene) -> None:
    """Run in deterministic mode and without."""
    for name in WAYS if scene.on_gpu else ("default",):
        try:
            asyncio.run(run(scene, name))
        except Exception as error:
            Row.failed(f"a run, trainer killed, {name}", error).say()
