"""Behind too many steps a trainer takes the newest weights, with the optimizer of its checkpoint, and says so."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors.trainer.trainer_plan import TrainerPlan
from schemas.arrays import unpack
from schemas.checkpoints import CheckpointSaved
from schemas.steps import StepCommitted
from schemas.trainers import Fidelity, TrainerRestored
from schemas.weights import WeightsPublished
from slime_events.analysis.audit.audit import Audit, audit
from slime_events.app.cli.render.audit_text import report_text
from slime_events.core.state.run import RunPhase
from slime_events.core.training.train_batch import StepResult, TrainBatch
from storage.weights.stored_version import verify
from tests import made
from tests.scripted_engine import Script
from tests.simulation.parts import NoisyRanks, ScriptedRanks
from tests.simulation.simulation import Simulation, make_plan

STEP = Script(chunk=8, seconds_per_chunk=0.002)


class TwoUpdates(NoisyRanks):
    """Each step is two optimizer steps."""

    async def train(self, batch: TrainBatch) -> StepResult:
        result = await super().train(batch)
        return StepResult(result.metrics | {"optimizer_steps": 2.0}, result.optimizer_digest)


class NeverSaves(TwoUpdates):
    async def save_checkpoint(self, folder: str) -> None:
        await asyncio.Event().wait()


async def crashed_after(
    tmp_path: Path, steps: int, retrains: int, first: ScriptedRanks, *, gone: tuple[int, ...] = (), **plan: Any
) -> Simulation:
    """A finished run whose trainer was lost after some steps, and replaced."""
    async with Simulation(tmp_path, make_plan(**plan), ranks=first, training={"retrains": retrains}) as sim:
        sim.start_engine(STEP, lease_s=1.0)
        await sim.until(StepCommitted, steps)
        if plan.get("checkpoint_every") == 1:
            await sim.until(CheckpointSaved, steps)
        await sim.kill_trainer()
        sim.trainer._store.remove(gone)
        sim.start_trainer((TwoUpdates if isinstance(first, TwoUpdates) else ScriptedRanks)(disk=first.disk))
        assert await sim.finish() is RunPhase.FINISHED
    return sim


@pytest.mark.parametrize(("every", "checkpoint"), [(None, 0), (1, 3), (2, 2)])
@pytest.mark.parametrize("retrains", [0, 1, 2])
async def test_too_many_steps_are_not_trained_again(
    tmp_path: Path, retrains: int, every: int | None, checkpoint: int
) -> None:
    first = TwoUpdates()
    sim = await crashed_after(tmp_path, 3, retrains, first, checkpoint_every=every)
    behind = 3 - checkpoint
    skipped = behind if behind > retrains else 0
    (restored,) = sim.events(TrainerRestored)
    assert (restored.version, restored.checkpoint) == (3, checkpoint)
    assert (restored.skipped, restored.retrained) == (skipped, behind - skipped)
    assert (restored.optimizer is Fidelity.EXACT) is (behind == 0)
    assert restored.distance is None or not skipped
    assert [batch.step for batch in sim.ranks.trained] == [*range(checkpoint + skipped, 3), 3, 4]
    assert sim.ranks.scheduled == 2 * skipped, "the learning rate is that of the next step"
    committed = {event.version: event for event in sim.events(StepCommitted)}
    assert [event.version for event in sim.events(WeightsPublished)] == list(range(6))
    for event in sim.events(WeightsPublished)[1:]:
        assert verify(event.url, committed[event.version].weights_digest)
    report = await audit(sim.log.read(), Audit("sim", fetch=unpack, files=False))
    assert report.clean, report_text(report, 0)


async def test_where_the_newest_weights_are_gone_all_steps_are_trained_again(tmp_path: Path) -> None:
    sim = await crashed_after(tmp_path, 3, 1, ScriptedRanks(), gone=(3,), publish_every=5)
    (restored,) = sim.events(TrainerRestored)
    assert (restored.skipped, restored.retrained, restored.optimizer) == (0, 3, Fidelity.EXACT)
    assert sim.ranks.scheduled == 0


async def test_an_optimizer_that_nobody_hashes_is_approximate_too(tmp_path: Path) -> None:
    class Unhashed(ScriptedRanks):
        async def train(self, batch: TrainBatch) -> StepResult:
            return StepResult((await super().train(batch)).metrics, "")

    sim = await crashed_after(tmp_path, 3, 1, Unhashed())
    (restored,) = sim.events(TrainerRestored)
    assert (restored.skipped, restored.optimizer_digest) == (3, "")
    assert restored.optimizer is Fidelity.APPROXIMATE


async def test_the_last_checkpoint_is_saved_where_its_step_was_skipped(tmp_path: Path) -> None:
    """The run waits for it."""
    sim = await crashed_after(tmp_path, 5, 1, NeverSaves(), checkpoint_every=5)
    (restored,), (saved,) = sim.events(TrainerRestored), sim.events(CheckpointSaved)
    assert (restored.version, restored.skipped, saved.version) == (5, 5, 5)
    assert saved.optimizer_digest == restored.optimizer_digest
    assert sim.ranks.trained == []


@pytest.mark.parametrize(
    ("trainer", "algorithm", "most"),
    [
        ({}, {}, -1),
        ({"max_retrained_steps": 3}, {}, 3),
        ({"max_retrained_steps": 0}, {}, 0),
        ({"max_retrained_steps": 3, "exact": True}, {}, -1),
        ({"max_retrained_steps": 3}, {"advantage_estimator": "ppo"}, -1),
    ],
)
def test_a_critic_and_an_exact_run_train_again(trainer: dict[str, Any], algorithm: dict[str, Any], most: int) -> None:
    settings = made.settings(trainer=trainer, algorithm=algorithm)
    assert TrainerPlan.of(settings, "").retrains == most
