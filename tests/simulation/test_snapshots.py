"""Roles that begin with a snapshot do what those that read the whole log do."""

from __future__ import annotations

import asyncio
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from actors.conductor import Conductor
from actors.grader import Grader
from schemas.batches import BatchSealed
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned
from schemas.runs import RunFinished
from schemas.steps import StepCommitted
from slime_events.core.run.participant import Participant
from slime_events.core.state.keeper import StateKeeper
from slime_events.core.state.run import state_digest
from slime_events.core.state.snapshot import Snapshots, low_water, training_start
from storage.group_commit import GroupCommit
from storage.log import Subjects
from tests.scripted_engine import Script
from tests.simulation.parts import InstantPool, ScriptedRanks
from tests.simulation.roles import make_conductor, make_trainer
from tests.simulation.simulation import Simulation, make_plan
from tests.simulation.test_run import check_run, check_tokens

STEP = Script(chunk=8, seconds_per_chunk=0.002)
EVERY = 15


def keeping(sim: Simulation, folder: Path) -> Conductor:
    keeper = StateKeeper(Snapshots(folder), every=EVERY)
    return make_conductor(Participant(sim.log, "conductor"), sim.plan, sim.feed, keeper=keeper)


async def kill(sim: Simulation, role: str) -> int:
    """Kill it like kill -9; return its place among the roles."""
    (task,) = (task for task in sim._roles if task.get_name() == role)
    place = sim._roles.index(task)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return place


def watch_reads(sim: Simulation) -> list[tuple[int, Subjects]]:
    """Record where readings of the log begin from now on."""
    starts: list[tuple[int, Subjects]] = []
    read = sim.log.read

    def watching(start: int = 1, subject: Subjects = None, *, follow: bool = False) -> Any:
        starts.append((start, subject))
        return read(start, subject, follow=follow)

    sim.log.read = watching  # type: ignore[method-assign]
    return starts


async def whole_run(folder: Path, *, delete: bool) -> tuple[Simulation, list[tuple[int, str | None]]]:
    """A run whose conductor is killed after two steps; and where its successor begins to read."""
    folder.mkdir()
    snapshots = folder / "snapshots"
    sim = Simulation(folder, make_plan())
    sim.conductor = keeping(sim, snapshots)
    async with sim:
        sim.start_engine(STEP)
        await sim.until(StepCommitted, 2)
        place = await kill(sim, "conductor")
        assert list(snapshots.iterdir())
        if delete:
            shutil.rmtree(snapshots)
        starts = watch_reads(sim)
        sim.conductor = keeping(sim, snapshots)
        sim._roles[place] = asyncio.create_task(sim.conductor.run(), name="conductor")
        await sim.finish()
        del sim.log.read
    return sim, starts


async def test_deleting_snapshots_changes_nothing_but_time(tmp_path: Path) -> None:
    kept, starts = await whole_run(tmp_path / "kept", delete=False)
    assert min(start for start, subject in starts if subject is None) > EVERY
    deleted, starts = await whole_run(tmp_path / "deleted", delete=True)
    assert min(start for start, subject in starts if subject is None) == 1
    digests = []
    for sim in (kept, deleted):
        check_run(sim)
        (finished,) = sim.events(RunFinished)
        assert state_digest(sim.fold(finished.events)) == finished.state_digest
        digests.append([(e.batch_digest, e.weights_digest) for e in sim.events(StepCommitted)])
    assert digests[0] == digests[1]


async def test_the_last_state_of_a_run_is_kept(tmp_path: Path) -> None:
    sim, _ = await whole_run(tmp_path / "run", delete=False)
    snapshot = await Snapshots(tmp_path / "run" / "snapshots").newest(sim.log)
    assert snapshot is not None
    (end,) = (at.position for at in sim.log.records if isinstance(at.envelope.event, RunFinished))
    assert snapshot.position >= end, "an engine may have said something more"
    assert snapshot.state == sim.fold(snapshot.position)
    length = len(sim.log.records)
    again = keeping(sim, tmp_path / "run" / "snapshots")
    assert await asyncio.wait_for(again.run(), 20) is sim.conductor.state.phase
    assert len(sim.log.records) == length, "a conductor of a finished run ends without a word"


async def test_a_snapshot_that_cannot_be_written_holds_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "snapshots").write_text("a file where the folder should be")
    sim = Simulation(tmp_path, make_plan(steps=2))
    sim.conductor = keeping(sim, tmp_path / "snapshots")
    async with sim:
        sim.start_engine(STEP)
        await sim.finish()
    check_run(sim)
    assert "no snapshot of position" in caplog.text


@pytest.mark.parametrize("whole_groups", [False, True])
async def test_a_grader_that_begins_at_the_low_water_grades_all_that_is_left(
    tmp_path: Path, whole_groups: bool
) -> None:
    plan = make_plan(max_staleness=2, in_prompt_order=False, eval_every=2, eval_names=("held",), eval_samples=2)
    sim = Simulation(tmp_path, plan, evaluations={"held": ["one", "two"]}, whole_groups=whole_groups)
    async with sim:
        sim.start_engine(STEP)
        await sim.until(StepCommitted, 2)
        place = await kill(sim, "grader")
        start = low_water(sim.fold())
        assert start > 1
        pool = InstantPool()

        async def grade() -> None:
            async with GroupCommit(sim.log) as commit:
                await Grader(Participant(sim.log, "grader"), pool, commit, whole_groups=whole_groups, start=start).run()

        sim._roles[place] = asyncio.create_task(grade(), name="grader")
        await sim.finish()
    check_run(sim)
    rewards = [event.sample for event in sim.events(RewardAssigned)]
    assert len(rewards) == len(set(rewards))
    assert 0 < len(pool.graded) < len(rewards)


async def test_a_grader_that_begins_after_the_end_ends(tmp_path: Path) -> None:
    async with Simulation(tmp_path, make_plan(steps=1)) as sim:
        sim.start_engine(STEP)
        await sim.finish()
    start = low_water(sim.fold())
    assert start == len(sim.log.records) + 1
    async with GroupCommit(sim.log) as commit:
        grader = Grader(Participant(sim.log, "grader"), InstantPool(), commit, whole_groups=False, start=start)
        await asyncio.wait_for(grader.run(), 20)


@pytest.mark.parametrize(("every", "trained_again"), [(2, [2]), (None, [0, 1, 2])])
async def test_a_trainer_reads_no_more_than_the_batches_since_its_checkpoint(
    tmp_path: Path, every: int | None, trained_again: list[int]
) -> None:
    sim = Simulation(tmp_path, make_plan(checkpoint_every=every))
    async with sim:
        sim.start_engine(STEP)
        await sim.until(StepCommitted, 3)
        await kill(sim, "trainer")
        await sim.until(BatchSealed, 4)
        sim.disown_trainer()
        ranks = ScriptedRanks(disk=sim.ranks.disk)
        start_of = partial(training_start, sim.fold())
        trainer = make_trainer(Participant(sim.log, "trainer"), sim.plan, ranks, tmp_path, start_of=start_of)
        starts = watch_reads(sim)
        sim.ranks = ranks
        sim._roles.append(asyncio.create_task(trainer.run(), name="trainer"))
        await sim.finish()
    check_tokens(sim)
    assert [batch.step for batch in ranks.trained] == [*trained_again, 3, 4]
    (start,) = [start for start, subject in starts if isinstance(subject, tuple)]
    prompts = {
        r.envelope.event.group: r.position for r in sim.log.records if isinstance(r.envelope.event, PromptSubmitted)
    }
    first = sim.events(BatchSealed)[trained_again[0]]
    assert start == min(prompts[group] for group in first.groups)
