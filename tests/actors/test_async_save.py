"""Checkpoints that are written while the trainer trains on (`--async-save`): what the log says of them, and when."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from schemas.checkpoints import CheckpointSaved
from schemas.errors import TrainerError
from schemas.steps import StepCommitted
from schemas.trainers import TrainerRestored
from slime_events.core.state.run import RunPhase
from slime_events.core.training.save_progress import SaveProgress, SaveState
from storage.weights.store import Retention, WeightStore
from tests.scripted_engine import Script
from tests.simulation.parts import ScriptedRanks
from tests.simulation.simulation import Simulation, make_plan


class Background(ScriptedRanks):
    """written: nothing is, before it is set. bad: versions that cannot be. second: set when two were begun."""

    def __init__(self, disk: dict[str, bytes] | None = None, *, bad: tuple[int, ...] = ()) -> None:
        super().__init__(disk=disk)
        self.written, self.bad = asyncio.Event(), [f"v{version:06d}" for version in bad]
        self.pending: tuple[str, bytes] | None = None
        self.begun: list[str] = []
        self.second = asyncio.Event()

    async def begin_checkpoint(self, folder: str) -> None:
        assert self.pending is None
        self.pending = folder, self.weights
        self.begun.append(Path(folder).name)
        if len(self.begun) == 2:
            self.second.set()

    async def finish_checkpoint(self, *, wait: bool) -> SaveProgress:
        assert self.pending is not None
        if wait:
            await self.written.wait()
        if not self.written.is_set():
            return SaveProgress(SaveState.WRITING)
        (folder, weights), self.pending = self.pending, None
        if Path(folder).name in self.bad:
            return SaveProgress(SaveState.FAILED, "rank 0: full")
        self.disk[folder] = weights
        return SaveProgress(SaveState.SAVED)

    async def save_checkpoint(self, folder: str) -> None:
        if "foreground" in self.bad:
            raise TrainerError("full")
        await super().save_checkpoint(folder)


def simulation(folder: Path, ranks: Background, **plan: Any) -> Simulation:
    return Simulation(folder, make_plan(**{"steps": 4, **plan}), ranks=ranks, training={"async_save": True})


async def test_steps_go_on_while_it_is_written_and_the_log_has_it_once_it_is(tmp_path: Path) -> None:
    ranks = Background()
    async with simulation(tmp_path, ranks, checkpoint_every=2) as sim:
        sim.start_engine(Script(chunk=8))
        await sim.until(StepCommitted, 3)
        assert ranks.pending
        assert not sim.events(CheckpointSaved)
        ranks.written.set()
        assert await sim.finish() is RunPhase.FINISHED
    saved, committed = sim.events(CheckpointSaved), {event.version: event for event in sim.events(StepCommitted)}
    assert [event.version for event in saved] == [2, 4]
    for event in saved:
        assert ranks.disk[event.url].hex() == event.optimizer_digest == committed[event.version].optimizer_digest
    assert not ranks.saved, "none in the foreground"


async def test_weights_of_a_checkpoint_that_is_being_written_stay(tmp_path: Path) -> None:
    ranks, training = Background(), {"async_save": True, "retention": Retention(newest=1)}
    async with Simulation(tmp_path, make_plan(steps=5, checkpoint_every=2), ranks=ranks, training=training) as sim:
        sim.start_engine(Script(chunk=8))
        await sim.until(StepCommitted, 4)
        store = WeightStore(str(tmp_path / "weights"))
        assert 1 not in store.versions()
        assert 2 in store.versions()
        ranks.written.set()
        assert await sim.finish() is RunPhase.FINISHED


async def test_the_next_one_waits_for_it_and_so_does_the_end_of_the_run(tmp_path: Path) -> None:
    ranks = Background()
    async with simulation(tmp_path, ranks, steps=2, checkpoint_every=1) as sim:
        sim.start_engine(Script(chunk=8))
        await sim.until(StepCommitted, 2)
        finished = asyncio.create_task(sim.finish())
        await asyncio.sleep(0.05)
        assert ranks.begun == ["v000001"]
        assert not finished.done()
        ranks.written.set()
        assert await finished is RunPhase.FINISHED
    assert ranks.begun == ["v000001", "v000002"]
    assert [event.version for event in sim.events(CheckpointSaved)] == [1, 2]


async def test_of_a_crash_while_it_is_written_the_one_before_is_left(tmp_path: Path) -> None:
    ranks = Background()
    async with simulation(tmp_path, ranks, checkpoint_every=1) as sim:
        sim.start_engine(Script(chunk=8))
        ranks.written.set()
        await sim.until(CheckpointSaved, 1)
        ranks.written.clear()
        await ranks.second.wait()
        await sim.kill_trainer()
        versions = [event.version for event in sim.events(CheckpointSaved)]
        other = Background(ranks.disk)
        other.written.set()
        sim.start_trainer(other)
        assert await sim.finish() is RunPhase.FINISHED
    assert [event.checkpoint for event in sim.events(TrainerRestored)] == [max(versions)]
    assert {event.version for event in sim.events(CheckpointSaved)} == {1, 2, 3, 4}


async def test_one_that_fails_is_counted_in_the_steps_and_the_next_one_is_tried(tmp_path: Path) -> None:
    ranks = Background(bad=(1, 2))
    ranks.written.set()
    async with simulation(tmp_path, ranks, checkpoint_every=1) as sim:
        sim.start_engine(Script(chunk=8))
        assert await sim.finish() is RunPhase.FINISHED
    assert [event.version for event in sim.events(CheckpointSaved)] == [3, 4]
    assert sim.events(StepCommitted)[-1].metrics["checkpoints_failed"] == 2
    assert "checkpoints_failed" not in sim.events(StepCommitted)[0].metrics


async def test_without_its_last_one_no_run_ends(tmp_path: Path) -> None:
    ranks = Background(bad=(4,))
    ranks.written.set()
    async with simulation(tmp_path, ranks, checkpoint_every=2) as sim:
        sim.start_engine(Script(chunk=8))
        assert await sim.finish() is RunPhase.FINISHED
    assert [event.version for event in sim.events(CheckpointSaved)] == [2, 4]
    assert [Path(folder).name for folder in ranks.saved] == ["v000004"]
    ranks = Background(bad=(4,))
    ranks.written.set()
    ranks.bad.append("foreground")
    (tmp_path / "full").mkdir()
    async with simulation(tmp_path / "full", ranks, checkpoint_every=2) as sim:
        sim.start_engine(Script(chunk=8))
        with pytest.raises(TrainerError):
            await sim.finish()
