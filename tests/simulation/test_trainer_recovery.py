"""Test another trainer that repeats the steps since the last checkpoint, to the same digests, and continues."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas.batches import BatchSealed
from schemas.checkpoints import CheckpointSaved
from schemas.errors import TrainerError, WeightsDamaged
from schemas.steps import StepCommitted
from schemas.trainers import Fidelity, TrainerRestored
from schemas.weights import WeightsPublished
from slime_events.core.state.run import RunPhase
from slime_events.core.training.train_batch import StepResult, TrainBatch
from storage.weights.stored_version import read, verify
from tests.scripted_engine import Script
from tests.simulation.parts import CriticRanks, NoisyRanks, ScriptedRanks
from tests.simulation.simulation import Simulation, make_plan

STEP = Script(chunk=8, seconds_per_chunk=0.002)


def committed(sim: Simulation) -> list[tuple[str, str, str]]:
    return [(e.batch_digest, e.weights_digest, e.optimizer_digest) for e in sim.events(StepCommitted)]


async def uninterrupted(folder: Path, **plan: Any) -> list[tuple[str, str, str]]:
    folder.mkdir()
    async with Simulation(folder, make_plan(**plan)) as sim:
        sim.start_engine(STEP)
        await sim.finish()
    return committed(sim)


@pytest.mark.parametrize(("every", "trained_again"), [(None, [0, 1, 2]), (2, [2]), (3, [])])
async def test_steps_since_the_last_checkpoint_are_trained_again(
    tmp_path: Path, every: int | None, trained_again: list[int]
) -> None:
    async with Simulation(tmp_path, make_plan(checkpoint_every=every)) as sim:
        sim.start_engine(STEP)
        await sim.until(StepCommitted, 3)
        if every == 3:
            await sim.until(CheckpointSaved)
        await sim.kill_trainer()
        await sim.until(BatchSealed, len(sim.events(StepCommitted)) + 1)
        done = len(sim.events(StepCommitted))
        sim.start_trainer(ScriptedRanks(disk=sim.ranks.disk))
        assert await sim.finish() is RunPhase.FINISHED
    assert done == 3, "the next batch takes longer than a kill"
    assert [batch.step for batch in sim.ranks.trained] == [*trained_again, 3, 4]
    assert committed(sim) == await uninterrupted(tmp_path / "other")
    assert [event.version for event in sim.events(WeightsPublished)] == list(range(6))
    due = list(range(every, 6, every)) if every else []
    assert [event.version for event in sim.events(CheckpointSaved)] == due


@asynccontextmanager
async def crashed(tmp_path: Path, ranks: Any = None, **plan: Any) -> AsyncIterator[Simulation]:
    """A run whose trainer is gone after three steps."""
    async with Simulation(tmp_path, make_plan(**plan), ranks=ranks) as sim:
        sim.start_engine(STEP, lease_s=1.0)
        await sim.until(StepCommitted, 3)
        await sim.kill_trainer()
        yield sim


@pytest.mark.parametrize("damage", ["missing", "other", "all missing"])
async def test_a_checkpoint_that_cannot_be_trusted_is_passed_over(tmp_path: Path, damage: str) -> None:
    async with crashed(tmp_path, checkpoint_every=1) as sim:
        saved = sim.events(CheckpointSaved)
        newest, disk = saved[-1], dict(sim.ranks.disk)
        if damage == "missing":
            del disk[newest.url]
        elif damage == "other":
            disk[newest.url] = b"?" * 32
        else:
            disk = {}
        sim.start_trainer(ScriptedRanks(disk=disk))
        assert await sim.finish() is RunPhase.FINISHED
    first = 0 if damage == "all missing" else newest.version - 1
    assert [batch.step for batch in sim.ranks.trained] == list(range(first, 5))
    assert disk[newest.url].hex() == newest.optimizer_digest, "it is saved again on the way"
    assert [event.version for event in sim.events(CheckpointSaved)] == [1, 2, 3, 4, 5], "and not said again"


@pytest.mark.parametrize("every", [None, 2])
async def test_a_critic_is_restored_with_the_weights_of_its_step(tmp_path: Path, every: int | None) -> None:
    """Also while it is trained alone: those steps leave the weights as they are, and are published all the same."""
    (tmp_path / "whole").mkdir()
    async with Simulation(tmp_path / "whole", make_plan(), ranks=CriticRanks()) as whole:
        whole.start_engine(STEP)
        await whole.finish()
    async with crashed(tmp_path, ranks=CriticRanks(), checkpoint_every=every) as sim:
        sim.start_trainer(CriticRanks(disk=sim.ranks.disk))
        assert await sim.finish() is RunPhase.FINISHED
    (restored,) = sim.events(TrainerRestored)
    digests = {event.version: event.critic_digest for event in sim.events(StepCommitted)}
    assert (restored.optimizer, restored.critic_digest) == (Fidelity.EXACT, digests[3])
    assert digests == {event.version: event.critic_digest for event in whole.events(StepCommitted)}
    assert len(set(digests.values())) == 5
    assert committed(sim) == committed(whole)
    published = [event.digest for event in sim.events(WeightsPublished)]
    assert [published.index(digest) for digest in published] == [0, 0, 0, 3, 4, 5]
    assert all(saved.critic_digest == digests[saved.version] for saved in sim.events(CheckpointSaved))


async def test_another_critic_than_was_committed_is_no_exact_restoration(tmp_path: Path) -> None:
    class Forgetful(CriticRanks):
        async def train(self, batch: TrainBatch) -> StepResult:
            self.critic = b"new"
            return await super().train(batch)

    async with crashed(tmp_path, ranks=CriticRanks(), checkpoint_every=1) as sim:
        newest = sim.events(CheckpointSaved)[-1]
        disk = sim.ranks.disk
        disk[newest.url] = disk[newest.url][:32] + b"another"
        sim.start_trainer(Forgetful(disk=disk))
        assert await sim.finish() is RunPhase.FINISHED
    (restored,) = sim.events(TrainerRestored)
    assert (restored.checkpoint, restored.optimizer) == (newest.version - 1, Fidelity.APPROXIMATE)
    assert restored.critic_digest != {event.version: event for event in sim.events(StepCommitted)}[3].critic_digest


async def test_with_exact_a_step_that_comes_out_otherwise_ends_the_run(tmp_path: Path) -> None:
    async with crashed(tmp_path, ranks=NoisyRanks()) as sim:
        with pytest.raises(TrainerError, match=r"step 0 differs from what was committed: weights digest \w{64} inst"):
            await asyncio.wait_for(sim.start_trainer(NoisyRanks(disk=sim.ranks.disk), exact=True), 60)


@pytest.mark.parametrize("every", [None, 2])
async def test_the_committed_weights_are_taken_where_training_again_gives_others(
    tmp_path: Path, every: int | None
) -> None:
    async with crashed(tmp_path, ranks=NoisyRanks(), checkpoint_every=every) as sim:
        sim.start_trainer(NoisyRanks(disk=sim.ranks.disk))
        assert await sim.finish() is RunPhase.FINISHED
    (restored,) = sim.events(TrainerRestored)
    retrained = 3 if every is None else 1
    assert (restored.version, restored.checkpoint) == (3, 3 - retrained)
    assert (restored.retrained, restored.differing) == (retrained, retrained)
    assert (restored.weights, restored.optimizer) == (Fidelity.EXACT, Fidelity.APPROXIMATE)
    assert restored.distance is not None
    assert 0 < restored.distance.max_abs < 1e-3, "steps are compared one by one: noise does not add up"
    committed = {event.version: event for event in sim.events(StepCommitted)}
    assert restored.optimizer_digest != committed[3].optimizer_digest
    for event in sim.events(WeightsPublished)[1:]:
        _, tensors = read(event.url)
        assert verify(event.url, committed[event.version].weights_digest)
        if event.version == 4:  # made of exactly the weights before, with the moments that the trainer said
            before = np.frombuffer(read(sim.events(WeightsPublished)[3].url)[1]["w"].data, "<f4")
            assert np.abs(np.frombuffer(tensors["w"].data, "<f4") - before).max() < 1e-3


@pytest.mark.parametrize(("gone", "ends"), [([1, 2], True), ([3], False)])
async def test_only_the_newest_weights_have_to_be_there(tmp_path: Path, gone: list[int], ends: bool) -> None:
    async with crashed(tmp_path, ranks=NoisyRanks()) as sim:
        sim.trainer._store.remove(gone)
        trainer = sim.start_trainer(NoisyRanks(disk=sim.ranks.disk))
        if ends:
            assert await sim.finish() is RunPhase.FINISHED
            (restored,) = sim.events(TrainerRestored)
            assert restored.distance is not None
            assert restored.distance.max_abs < 3e-3, "noise of three steps adds up"
        else:
            with pytest.raises(TrainerError, match=r"version 3 with digest \w{64}, cannot be loaded"):
                await asyncio.wait_for(trainer, 60)


@pytest.mark.parametrize("ranks", [ScriptedRanks, NoisyRanks])
async def test_without_optimizer_digests_the_weights_decide(tmp_path: Path, ranks: type[ScriptedRanks]) -> None:
    class Unhashed(ranks):  # type: ignore[misc, valid-type]
        async def train(self, batch: TrainBatch) -> StepResult:
            return StepResult((await super().train(batch)).metrics, "")

    async with crashed(tmp_path, ranks=Unhashed(), checkpoint_every=2) as sim:
        sim.start_trainer(Unhashed(disk=sim.ranks.disk))
        assert await sim.finish() is RunPhase.FINISHED
    (restored,) = sim.events(TrainerRestored)
    assert (restored.checkpoint, restored.retrained, restored.optimizer_digest) == (2, 1, "")
    assert (restored.optimizer is Fidelity.EXACT) is (ranks is ScriptedRanks)
    assert {event.optimizer_digest for event in sim.events(CheckpointSaved)} == {""}


async def test_a_checkpoint_that_was_lost_is_not_saved_again_with_other_bits(tmp_path: Path) -> None:
    async with crashed(tmp_path, ranks=NoisyRanks(), checkpoint_every=2) as sim:
        (lost,) = sim.events(CheckpointSaved)
        del sim.ranks.disk[lost.url]
        sim.start_trainer(NoisyRanks(disk=sim.ranks.disk))
        assert await sim.finish() is RunPhase.FINISHED
    assert lost.url not in sim.ranks.disk, "its digests stand in the log, and these are others"
    assert [event.version for event in sim.events(CheckpointSaved)] == [2, 4]


async def test_weights_that_did_not_arrive_are_noticed(tmp_path: Path) -> None:
    class Deaf(NoisyRanks):
        async def load_weights(self, folder: str) -> None:
            self.weights = b"\0" * 32

    async with crashed(tmp_path, ranks=NoisyRanks()) as sim:
        with pytest.raises(TrainerError, match=r"version 1 with digest \w{64}, cannot be loaded"):
            await asyncio.wait_for(sim.start_trainer(Deaf(disk=sim.ranks.disk)), 60)


async def test_a_checkpoint_of_an_approximate_optimizer_is_gone_on_from(tmp_path: Path) -> None:
    """Kill a trainer between its commit and its checkpoint: the next one saves what it continues with, and
    says which.
    """

    class Saving(NoisyRanks):
        async def save_checkpoint(self, folder: str) -> None:
            await asyncio.Event().wait()

    async with crashed(tmp_path, ranks=Saving(), checkpoint_every=3) as sim:
        disk = sim.ranks.disk
        sim.start_trainer(NoisyRanks(disk=disk))
        saved = (await sim.until(CheckpointSaved))[-1]
        await sim.kill_trainer()
        sim.start_trainer(NoisyRanks(disk=disk))
        assert await sim.finish() is RunPhase.FINISHED
    first, second = sim.events(TrainerRestored)
    assert saved.version == 3
    assert saved.optimizer_digest == first.optimizer_digest
    assert second.checkpoint == 3
    assert second.differing == second.retrained


async def test_another_base_is_named(tmp_path: Path) -> None:
    ranks = ScriptedRanks()
    ranks.weights = b"1" * 32
    async with crashed(tmp_path) as sim:
        with pytest.raises(TrainerError, match="the base checkpoint has"):
            await asyncio.wait_for(sim.start_trainer(ranks), 60)


@pytest.mark.parametrize("every", [None, 1])
@pytest.mark.parametrize("damage", ["missing", "torn"])
async def test_weights_that_were_lost_are_written_again(tmp_path: Path, damage: str, every: int | None) -> None:
    async with crashed(tmp_path, checkpoint_every=every) as sim:
        published = sim.events(WeightsPublished)[-1]
        await sim.kill(sim.lines[0])
        if damage == "missing":
            shutil.rmtree(published.url)
        else:
            with (Path(published.url) / "model.safetensors").open("r+b") as file:
                file.seek(-1, 2)
                file.write(b"\xff")
        sim.start_trainer(ScriptedRanks(disk=sim.ranks.disk))
        for _ in range(2000):
            if is_whole(published):
                break
            await asyncio.sleep(0.005)
        sim.start_engine(STEP)
        assert await sim.finish(dead=sim.lines[:1]) is RunPhase.FINISHED


def is_whole(published: WeightsPublished) -> bool:
    try:
        verify(published.url, published.digest)
    except WeightsDamaged:
        return False
    return True


async def test_a_trainer_that_comes_after_the_end_trains_nothing(tmp_path: Path) -> None:
    async with Simulation(tmp_path) as sim:
        sim.start_engine(STEP)
        await sim.finish()
        assert await asyncio.wait_for(sim.start_trainer(ScriptedRanks()), 60) == 5
    assert sim.ranks.trained == []
