"""The trainer's shell by itself; whole runs of it are in tests/simulation."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Collection
from pathlib import Path

import pytest

from actors.trainer.checkpoints import CheckpointFolders
from actors.trainer.trainer import Trainer
from actors.trainer.trainer_plan import TrainerPlan
from schemas.arrays import unpack
from schemas.checkpoints import CheckpointSaved
from schemas.errors import Conflict, TrainerError
from schemas.steps import StepClaimed, StepCommitted
from schemas.subjects import about
from schemas.weights import WeightsCarrier, WeightsPublished
from slime_events.core.config.save_steps import SaveSteps
from slime_events.core.run.participant import Participant
from slime_events.core.state.run import RunPhase
from slime_events.core.training.train_batch import TrainBatch
from slime_events.loop.training.pending_batches import PendingBatches
from storage.log import Recorded
from storage.memory_log import MemoryLog
from storage.weights.shared_versions import SharedVersions
from storage.weights.store import Retention, WeightStore
from storage.weights.stored_version import verify
from tests import made
from tests.scripted_engine import Script
from tests.simulation.parts import ScriptedRanks, StepResult
from tests.simulation.simulation import Simulation, make_plan


async def test_of_two_trainers_the_one_that_is_behind_ends_with_a_reason(tmp_path: Path) -> None:
    log = MemoryLog("demo")
    step = made.committed(samples=0, tokens=0)
    trainer = Trainer(
        Participant(log, "trainer"),
        ScriptedRanks(),
        WeightStore(str(tmp_path), durable=False),
        PendingBatches(unpack, temperature=1.0),
        TrainerPlan(steps=2, checkpoints=""),
    )
    task = asyncio.create_task(trainer.run())
    async with asyncio.timeout(60):
        await anext(log.read(follow=True))
        await Participant(log, "trainer", "trainer-other").append([step])
        with pytest.raises(TrainerError, match="step 0 was committed by trainer-other"):
            await task


class Gated(ScriptedRanks):
    """Trains once the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.started, self.gate = asyncio.Event(), asyncio.Event()

    async def train(self, batch: TrainBatch) -> StepResult:
        self.started.set()
        await self.gate.wait()
        return await super().train(batch)


@pytest.mark.parametrize(("heir_is_first", "error"), [(False, Conflict), (True, TrainerError)])
async def test_a_late_trainer_ends_where_another_has_taken_over(
    tmp_path: Path, heir_is_first: bool, error: type[Exception]
) -> None:
    """Continue like a trainer whose process was cut off for a while. What it has trained is refused, or is
    the same event.
    """
    first, second = Gated(), Gated()
    async with Simulation(tmp_path, make_plan(steps=2), ranks=first) as sim:
        sim.start_engine(Script(chunk=8))
        await first.started.wait()
        late = sim.disown_trainer()
        sim.start_trainer(second)
        await second.started.wait()
        if heir_is_first:
            second.gate.set()
            await sim.until(StepCommitted)
        first.gate.set()
        with pytest.raises(error):
            await asyncio.wait_for(late, 60)
        second.gate.set()
        assert await sim.finish() is RunPhase.FINISHED
    heir = sim.events(StepClaimed)[1].trainer
    committed = [r.envelope for r in sim.log.records if isinstance(r.envelope.event, StepCommitted)]
    assert [event.producer for event in committed] == [heir, heir]


async def test_the_last_version_is_published_where_its_turn_has_not_come(tmp_path: Path) -> None:
    async with Simulation(tmp_path, make_plan(steps=3, publish_every=2)) as sim:
        sim.start_engine(Script(chunk=8))
        assert await sim.finish() is RunPhase.FINISHED
    assert [event.version for event in sim.events(WeightsPublished)] == [0, 2, 3]
    assert sim.events(WeightsPublished)[-1].digest == sim.events(StepCommitted)[-1].weights_digest


async def test_versions_that_engines_load_are_offered_until_the_next_one(tmp_path: Path) -> None:
    """Offered as long as they are the newest published one, and not at all when the trainer has ended."""
    sim, withdrawn = Simulation(tmp_path, make_plan(steps=3, publish_every=2)), list[int | None]()

    class Noting(SharedVersions):
        def retire(self, newest: int | None) -> None:
            withdrawn.append(newest)
            super().retire(newest)

    plan = TrainerPlan(steps=3, checkpoints="", publish_every=2)
    offering = Noting(f"offers-{os.getpid()}", plan.publishes)
    store = WeightStore(str(tmp_path / "weights"), durable=False, offering=offering)
    batches = PendingBatches(unpack, temperature=1.0)
    sim.trainer = Trainer(Participant(sim.log, "trainer"), sim.ranks, store, batches, plan)
    async with sim:
        sim.start_engine(Script(chunk=8))
        assert await sim.finish() is RunPhase.FINISHED
    published = sim.events(WeightsPublished)
    assert [(event.version, event.carrier) for event in published] == [
        (version, WeightsCarrier.SHARED_MEMORY) for version in (0, 2, 3)
    ]
    assert withdrawn == [0, 2, 3, None]
    assert {store.carrier(event.version, event.digest) for event in published} == {WeightsCarrier.FILES}


class Shown(ScriptedRanks):
    """Notes which versions it is shown, with what is in the log by then."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[tuple[int, bool]] = []
        self.sim: Simulation | None = None

    async def show_weights(self, folder: str) -> dict[str, str]:
        published = verify(folder)
        assert self.sim is not None
        is_told = published.version in {event.version for event in self.sim.events(WeightsPublished)}
        self.shown.append((published.version, is_told))
        return {"custom_update_weight_post_write_path": "digest"}


async def test_each_version_that_engines_load_is_shown_before_it_is_published(tmp_path: Path) -> None:
    ranks = Shown()
    sim = ranks.sim = Simulation(tmp_path, make_plan(steps=3, publish_every=2), ranks=ranks)
    sim.trainer.plan = dataclasses.replace(sim.trainer.plan, shows=True)
    async with sim:
        sim.start_engine(Script(chunk=8))
        assert await sim.finish() is RunPhase.FINISHED
    assert ranks.shown == [(0, False), (2, False), (3, False)]
    assert all(event.functions for event in sim.events(WeightsPublished))


async def test_the_version_that_engines_load_is_kept_until_the_next_one_is_published(tmp_path: Path) -> None:
    sim = Simulation(tmp_path, make_plan(steps=5, publish_every=3))
    removed: list[list[int]] = []

    class Told(WeightStore):
        def remove(self, versions: Collection[int]) -> None:
            removed.append(list(versions))
            super().remove(versions)

    store = Told(str(tmp_path / "weights"), durable=False)
    sim.trainer = Trainer(
        Participant(sim.log, "trainer"),
        sim.ranks,
        store,
        PendingBatches(unpack, temperature=1.0),
        TrainerPlan(steps=5, checkpoints="", publish_every=3, retention=Retention(newest=1)),
    )
    async with sim:
        sim.start_engine(Script(chunk=8))
        assert await sim.finish() is RunPhase.FINISHED
    assert removed == [[], [1], [0, 2], [], [3, 4]]
    assert store.versions() == [5]


async def test_checkpoints_that_retention_lets_go_take_their_weights_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Count what a predecessor has saved when a trainer takes over."""
    store = WeightStore(str(tmp_path / "weights"), durable=False)
    folders = CheckpointFolders(str(tmp_path / "checkpoints"))
    sim = Simulation(tmp_path, make_plan(steps=9, checkpoint_every=1), ranks=OnDisk())
    plan = TrainerPlan(
        steps=9,
        checkpoints=folders.root,
        saves=SaveSteps(1),
        retention=Retention(newest=1, every=8),
        checkpoint_retention=Retention(newest=2, every=3),
    )
    foreign = Path(folders.of(77))
    foreign.mkdir(parents=True)

    def trainer(*, exact: bool = False) -> Trainer:
        batches = PendingBatches(unpack, temperature=1.0)
        return Trainer(Participant(sim.log, "trainer"), sim.ranks, store, batches, plan)

    monkeypatch.setattr(sim, "_new_trainer", trainer)
    sim.trainer = trainer()
    async with sim:
        sim.start_engine(Script(chunk=8))
        await sim.until(CheckpointSaved, 5)
        await sim.kill_trainer()
        sim.start_trainer(OnDisk(disk=sim.ranks.disk))
        assert await sim.finish() is RunPhase.FINISHED
    kept = {3, 6, 8, 9}
    assert {int(path.name[1:]) for path in Path(folders.root).glob("v*")} == kept | {77}, "77 is not in the log"
    assert set(store.versions()) == kept | {0, 8}
    assert not list(Path(folders.root).glob(".*.removed"))


async def test_of_two_trainers_that_claim_at_the_same_moment_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = Simulation(tmp_path, make_plan(steps=1))
    last, other = sim.log.last, StepClaimed(step=0, trainer="trainer-other")

    async def last_and_then_a_claim(subject: str) -> Recorded | None:
        recorded = await last(subject)
        if subject == about("sim", "step", "0") and not sim.events(StepClaimed):
            await Participant(sim.log, "trainer", "trainer-other").append([other])
        return recorded

    monkeypatch.setattr(sim.log, "last", last_and_then_a_claim)
    async with sim:
        late = sim.disown_trainer()
        sim.start_engine(Script(chunk=8))
        with pytest.raises(Conflict):
            await asyncio.wait_for(late, 60)
    assert sim.events(StepClaimed) == [other]


class OnDisk(ScriptedRanks):
    """Keep checkpoints as folders, which are never written over."""

    async def save_checkpoint(self, folder: str) -> None:
        Path(folder).mkdir(parents=True)
        await super().save_checkpoint(folder)


async def test_with_each_checkpoint_its_weights_are_copied_under_slimes_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They outlive the version: retention removes that. A trainer that takes over writes what is due again."""
    store = WeightStore(str(tmp_path / "weights"), durable=False)
    sim = Simulation(tmp_path, make_plan(steps=5, checkpoint_every=2), ranks=OnDisk())
    plan = TrainerPlan(
        steps=5,
        checkpoints=str(tmp_path / "checkpoints"),
        saves=SaveSteps(2),
        retention=Retention(newest=1),
        checkpoint_retention=Retention(newest=1),
        save_hf=str(tmp_path / "hf" / "step{rollout_id}"),
    )

    def trainer(*, exact: bool = False) -> Trainer:
        return Trainer(Participant(sim.log, "trainer"), sim.ranks, store, PendingBatches(unpack, temperature=1.0), plan)

    monkeypatch.setattr(sim, "_new_trainer", trainer)
    sim.trainer = trainer()
    async with sim:
        sim.start_engine(Script(chunk=8))
        await sim.until(CheckpointSaved, 1)
        await sim.kill_trainer()
        sim.start_trainer(OnDisk(disk=sim.ranks.disk))
        assert await sim.finish() is RunPhase.FINISHED
    assert 2 not in store.versions()
    assert sorted(path.name for path in (tmp_path / "hf").iterdir()) == ["step1", "step3"]
    committed = {event.version: event.weights_digest for event in sim.events(StepCommitted)}
    for rollout_id in (1, 3):
        verify(str(tmp_path / "hf" / f"step{rollout_id}"), committed[rollout_id + 1])


async def test_what_lies_where_a_checkpoint_belongs_is_set_aside(tmp_path: Path) -> None:
    refused = tmp_path / "checkpoints" / "v000001"
    refused.mkdir(parents=True)
    (refused / "torn").touch()
    async with Simulation(tmp_path, make_plan(steps=3, checkpoint_every=2), ranks=OnDisk()) as sim:
        sim.start_engine(Script(chunk=8))
        assert await sim.finish() is RunPhase.FINISHED
    assert [event.version for event in sim.events(CheckpointSaved)] == [2]
    assert (refused / "torn").exists(), "no checkpoint of version 1 was due"
    (tmp_path / "again").mkdir()
    refused.parent.rename(tmp_path / "again" / "checkpoints")
    async with Simulation(tmp_path / "again", make_plan(steps=1, checkpoint_every=1), ranks=OnDisk()) as sim:
        sim.start_engine(Script(chunk=8))
        assert await sim.finish() is RunPhase.FINISHED
    folder = tmp_path / "again" / "checkpoints"
    assert sorted(path.name for path in folder.glob("*1*")) == [".v000001.aside", "v000001"]
    assert (folder / ".v000001.aside" / "torn").exists()
