"""A run that stores deltas commits the same weights as one that stores all, also if its trainer is killed."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from actors.trainer.trainer import Trainer
from actors.trainer.trainer_plan import TrainerPlan
from schemas.arrays import unpack
from schemas.checkpoints import CheckpointSaved
from schemas.steps import StepCommitted
from schemas.weights import WeightsActivated, WeightsKind, WeightsPublished
from slime_events.core.config.save_steps import SaveSteps
from slime_events.core.run.participant import Participant
from slime_events.core.state.run import RunPhase
from slime_events.core.training.train_batch import StepResult, TrainBatch
from slime_events.loop.training.pending_batches import PendingBatches
from storage.weights.delta_rule import DeltaRule
from storage.weights.files import is_delta
from storage.weights.store import Retention, WeightStore
from storage.weights.stored_version import verify
from tests.actors.test_trainer import OnDisk
from tests.scripted_engine import Script
from tests.simulation.simulation import Simulation, make_plan

STEPS = 7
Break = Callable[[WeightStore, str], None]


def _lose_copies(store: WeightStore, folder: str) -> None:
    shutil.rmtree(store.root / "copies")


def _lose_newest(store: WeightStore, folder: str) -> None:
    shutil.rmtree(folder)


def _damage_chain(store: WeightStore, folder: str) -> None:
    """The copies are gone, and so is what the newest version needs: it is written again, in full."""
    _lose_copies(store, folder)
    shutil.rmtree(store.folder(1))


BREAKS: dict[str, Break | None] = {
    "nothing": None,
    "copies": _lose_copies,
    "newest": _lose_newest,
    "chain": _damage_chain,
}


class TwoSteps(OnDisk):
    """Take two steps and no third: if the trainer is killed, version 2 is the newest, under any load."""

    left = 2

    async def train(self, batch: TrainBatch) -> StepResult:
        if not self.left:
            await asyncio.Event().wait()
        self.left -= 1
        return await super().train(batch)


async def run(
    folder: Path, rule: DeltaRule | None, monkeypatch: pytest.MonkeyPatch, broken: Break | None
) -> Simulation:
    """A run whose trainer is killed after its first checkpoint."""
    folder.mkdir()
    store = WeightStore(str(folder / "weights"), durable=False, deltas=rule)
    sim = Simulation(folder, make_plan(steps=STEPS, checkpoint_every=2), ranks=TwoSteps())
    plan = TrainerPlan(
        steps=STEPS, checkpoints=str(folder / "checkpoints"), saves=SaveSteps(2), retention=Retention(newest=2),
        save_hf=str(folder / "hf" / "step{rollout_id}"),
    )  # fmt: skip

    def trainer(*, exact: bool = False) -> Trainer:
        return Trainer(Participant(sim.log, "trainer"), sim.ranks, store, PendingBatches(unpack, temperature=1.0), plan)

    monkeypatch.setattr(sim, "_new_trainer", trainer)
    sim.trainer = trainer()
    async with sim:
        sim.start_engine(Script(chunk=8))
        await sim.until(CheckpointSaved, 1)
        await sim.kill_trainer()
        await sim.until(WeightsActivated, 3)  # 2 is loaded, so nobody reads a copy while it is removed
        if broken is not None:
            broken(store, store.folder(store.versions()[-1]))
        sim.start_trainer(OnDisk(disk=sim.ranks.disk))
        assert await sim.finish() is RunPhase.FINISHED
    return sim


@pytest.mark.parametrize("name", BREAKS)
async def test_the_weights_are_those_of_a_full_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    full = await run(tmp_path / "full", None, monkeypatch, None)
    sim = await run(tmp_path / "delta", DeltaRule(full_every=4), monkeypatch, BREAKS[name])
    committed = {event.version: event.weights_digest for event in sim.events(StepCommitted)}
    assert committed == {event.version: event.weights_digest for event in full.events(StepCommitted)}
    published = {event.version: event for event in sim.events(WeightsPublished)}
    assert {event.kind for event in full.events(WeightsPublished)} == {WeightsKind.FULL}
    kinds = {version: event.kind is WeightsKind.DELTA for version, event in published.items()}
    assert kinds == {version: version % 4 != 0 for version in range(STEPS + 1)}
    assert all(event.digest == published[event.version].digest for event in sim.events(WeightsActivated))
    store = WeightStore(str(tmp_path / "delta" / "weights"))
    needed = set() if name == "chain" else {0, 1}  # 2 was written again in full
    assert set(store.versions()) == {2, 4, 6, 7, 5} | needed  # 6 and 7 need 5; the even ones have checkpoints
    for version in store.versions():
        assert verify(store.folder(version)).digest == published[version].digest
    for version in (2, 4, 6):
        copied = tmp_path / "delta" / "hf" / f"step{version - 1}"
        assert not is_delta(copied)
        verify(copied, committed[version])
