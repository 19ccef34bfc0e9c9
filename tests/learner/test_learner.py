"""A learner of a simulated run: the same log where it decides the same, its own where it does not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from actors.learner.learner import parent_records
from schemas.arrays import unpack
from schemas.batches import BatchSealed
from schemas.checkpoints import CheckpointSaved
from schemas.errors import DeadlineExceeded, LogUnavailable
from schemas.groups import GroupRejected
from schemas.runs import FinishReason, RunFinished
from schemas.steps import StepCommitted
from schemas.weights import WeightsPublished
from slime_events.analysis.audit.audit import Audit, audit
from slime_events.analysis.audit.ledger import read_ledger
from slime_events.app.cli.render.audit_text import report_text
from slime_events.core.config.toml import settings_from
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.run.run_reader import OpenedRun
from slime_events.loop.learner.batches import preview
from slime_events.loop.learner.overrides import Overrides
from storage.log import Recorded, Subjects
from storage.memory_log import MemoryLog
from tests.harness.history.checker import check
from tests.learner.learning import Learning
from tests.scripted_engine import Script
from tests.simulation.parts import Line, ScriptedRanks
from tests.simulation.simulation import Simulation, make_plan


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> MemoryLog:
    """The log of a finished run: five steps of two groups of three samples."""

    async def run() -> MemoryLog:
        async with Simulation(tmp_path_factory.mktemp("parent")) as sim:
            sim.start_engine(Script(chunk=8))
            await sim.finish()
        return sim.log

    return asyncio.run(run())


def batches(log: MemoryLog) -> list[BatchSealed]:
    return [r.envelope.event for r in log.records if isinstance(r.envelope.event, BatchSealed)]


def digests(log: MemoryLog) -> list[str]:
    return [r.envelope.event.weights_digest for r in log.records if isinstance(r.envelope.event, StepCommitted)]


def raw(recorded: Recorded) -> tuple[int, str, bytes]:
    return recorded.position, recorded.subject, recorded.data


async def clean(learning: Learning) -> None:
    """Audit with the parent's log and without it."""
    parent = await read_ledger(learning.parent.run, learning.parent.read())
    for parent_log in (None, parent):
        report = await audit(learning.log.read(), Audit(learning.log.run, files=False, parent=parent_log))
        assert report.clean, report_text(report, 0)
    (followed,) = [check.counts for check in report.checks if check.name == "followed"]
    assert followed["samples"] == sum(len(batch.samples) for batch in learning.events(BatchSealed)) > 0
    assert followed["of them not looked up"] == 0
    assert not check(map(raw, learning.log.records), parent=map(raw, learning.parent.records))


async def test_who_decides_the_same_comes_to_the_same_weights(parent: MemoryLog, tmp_path: Path) -> None:
    learning = Learning(parent, tmp_path)
    await learning.begin()
    assert await learning.run() == 5
    mine = [structs.replace(batch, oldest_version=batch.step) for batch in learning.events(BatchSealed)]
    assert mine == batches(parent)
    assert [batch.oldest_version for batch in learning.events(BatchSealed)] == [0] * 5, "no later one is its own"
    assert digests(learning.log) == digests(parent)
    assert [event.version for event in learning.events(WeightsPublished)] == [0, 1, 2, 3, 4, 5]
    (end,) = learning.events(RunFinished)
    assert end.reason is FinishReason.ALL_STEPS
    assert end.steps == 5
    await clean(learning)


async def test_a_dropped_sample_is_in_no_batch_and_its_group_is_normalised_without_it(
    parent: MemoryLog, tmp_path: Path
) -> None:
    was = batches(parent)[2]
    dropped = was.samples[1]
    learning = Learning(parent, tmp_path, Overrides(dropped=frozenset([dropped])))
    assert (await preview(parent.read(), learning.batches())).differing == [2]
    await learning.begin()
    await learning.run()
    batch = learning.events(BatchSealed)[2]
    assert batch.samples == tuple(sample for sample in was.samples if sample != dropped)
    assert batch.groups == was.groups
    assert sum(batch.rewards[:2]) == pytest.approx(0)
    assert batch.rewards[2:] == was.rewards[3:], "the other group is as it was"
    mine, theirs = digests(learning.log), digests(parent)
    assert mine[:2] == theirs[:2]
    assert all(mine_ != other for mine_, other in zip(mine[2:], theirs[2:], strict=True))
    await clean(learning)


async def test_a_group_of_one_is_dropped_and_a_batch_without_groups_is_a_step_that_changes_nothing(
    parent: MemoryLog, tmp_path: Path
) -> None:
    first, second = batches(parent)[1], batches(parent)[3]
    changes = Overrides(frozenset(first.samples[:2]), frozenset(second.groups))
    outlook = await preview(parent.read(), Learning(parent, tmp_path, changes).batches())
    assert outlook.gone == {*first.samples[:3], *second.samples}
    assert (outlook.differing, outlook.empty) == ([1, 3], [3])
    learning = Learning(parent, tmp_path, changes)
    await learning.begin()
    await learning.run()
    assert learning.events(BatchSealed)[1].groups == first.groups[1:]
    skipped = learning.events(StepCommitted)[3]
    assert (skipped.step, skipped.samples, skipped.version) == (3, 0, 4)
    mine = digests(learning.log)
    assert mine[3] == mine[2]
    assert mine[4] != mine[3]
    assert [batch.step for batch in learning.ranks.trained] == [0, 1, 2, 4]
    await clean(learning)


async def test_a_changed_reward_is_trained_on(parent: MemoryLog, tmp_path: Path) -> None:
    sample = batches(parent)[0].samples[0]
    learning = Learning(parent, tmp_path, Overrides(rewards={sample: 100.0}))
    await learning.begin()
    await learning.run()
    batch = learning.events(BatchSealed)[0]
    assert batch.raw_rewards[0] == 100.0
    assert learning.ranks.trained[0].samples[0].raw_reward == 100.0
    assert batch.rewards[0] > 0 > batch.rewards[1]
    await clean(learning)


async def test_too_few_rollouts_for_a_step_are_none(parent: MemoryLog, tmp_path: Path) -> None:
    changes = Overrides(dropped_groups=frozenset(batches(parent)[0].groups[:1]))
    outlook = await preview(parent.read(), Learning(parent, tmp_path, changes, least=4).batches())
    assert outlook.empty == [0]
    assert outlook.gone == set(batches(parent)[0].samples)


class Halfway:
    """A filter that keeps every other group."""

    def __init__(self, keep: int) -> None:
        self.keep = keep

    def __call__(self, group: object) -> object:
        from slime_events.plugins.filters.decide import run_filter
        from slime_events.plugins.sample_view import group_samples

        return run_filter(lambda args, samples: samples[0].group_index % 2 == self.keep, None, group_samples(group))


async def test_groups_that_the_parent_refused_join_the_batch_of_their_time(tmp_path: Path) -> None:
    async with Simulation(tmp_path, make_plan(steps=2), judge=Halfway(0)) as sim:
        sim.start_engine(Script(chunk=8))
        await sim.finish()
    refused = sim.events(GroupRejected)
    other = Learning(sim.log, tmp_path / "other", judge=Halfway(1), steps=2)
    await other.begin()
    await other.run()
    before = [e.group for e in refused if position(sim.log, e) < position(sim.log, batches(sim.log)[0])]
    first, second = other.events(BatchSealed)
    assert first.groups == tuple(before)
    assert set(first.groups + second.groups) == {event.group for event in refused}
    overrides = Overrides(verdicts={refused[0].group: True, batches(sim.log)[1].groups[0]: False})
    outlook = await preview(sim.log.read(), Learning(sim.log, tmp_path, overrides).batches())
    assert outlook.joined == set(refused[0].samples)
    assert len(outlook.gone) == 3


def position(log: MemoryLog, event: object) -> int:
    return next(r.position for r in log.records if r.envelope.event == event)


@pytest.mark.parametrize("every", [None, 2])
async def test_a_killed_learner_goes_on_exactly_once(parent: MemoryLog, tmp_path: Path, every: int | None) -> None:
    learning = Learning(parent, tmp_path, Overrides(dropped=frozenset(batches(parent)[0].samples[:1])))
    learning.checkpoint_every = every
    whole = Learning(parent, tmp_path / "whole", learning.changes, checkpoint_every=every)
    await whole.begin()
    await whole.run()
    await learning.begin()
    life = asyncio.create_task(learning.run(ranks=ScriptedRanks(0.01, learning.ranks.disk)))
    async for recorded in learning.log.read(follow=True):
        if isinstance(recorded.envelope.event, StepCommitted) and recorded.envelope.event.step == 2:
            break
    life.cancel()
    await asyncio.gather(life, return_exceptions=True)
    assert not learning.events(RunFinished)
    assert await learning.run(ranks=ScriptedRanks(disk=learning.ranks.disk)) == 5
    assert digests(learning.log) == digests(whole.log)
    assert learning.events(BatchSealed) == whole.events(BatchSealed)
    assert [event.version for event in learning.events(CheckpointSaved)] == ([2, 4] if every else [])
    await clean(learning)


async def test_a_stop_that_a_wait_loses_while_it_begins_is_still_a_stop(parent: MemoryLog, tmp_path: Path) -> None:
    reading = asyncio.Event()

    class Losing(Line):
        async def read(
            self, start: int = 1, subject: Subjects = None, *, follow: bool = False
        ) -> AsyncIterator[Recorded]:
            reading.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
            async for recorded in super().read(start, subject, follow=follow):
                yield recorded

    learning = Learning(parent, tmp_path)
    await learning.begin()
    task = asyncio.create_task(learning.run(log=Losing(learning.log)))
    await reading.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_learner_follows_a_run_that_is_on(tmp_path: Path) -> None:
    async with Simulation(tmp_path) as sim:
        sim.start_engine(Script(chunk=8, seconds_per_chunk=0.002))
        await sim.until(WeightsPublished)
        learning = Learning(sim.log, tmp_path / "second")
        await learning.begin()
        following = asyncio.create_task(learning.run())
        await sim.until(StepCommitted, 2)
        assert not following.done()
        await sim.finish()
        assert await following == 5
    assert digests(learning.log) == digests(sim.log)


async def test_a_parent_whose_server_goes_away_is_opened_again(parent: MemoryLog, tmp_path: Path) -> None:
    """Reopen it like a run at its end, when a learner is behind."""

    class Away(Line):
        async def read(self, start: int = 1, subject: Subjects = None, *, follow: bool = False) -> Any:
            async for recorded in super().read(start, subject, follow=follow):
                if recorded.position > 40 and len(opened) < 3:
                    raise LogUnavailable("the server has stopped")
                yield recorded

    opened: list[str] = []

    @asynccontextmanager
    async def open_parent(where: str) -> AsyncIterator[OpenedRun]:
        opened.append(where)
        yield OpenedRun(Away(parent), settings_from({}), unpack, RunFolder(tmp_path, "parent"), where)

    records = [recorded async for recorded in parent_records("there", deadline_s=60.0, open_parent=open_parent)]
    assert records == parent.records
    assert opened == ["there"] * 3
    with pytest.raises(DeadlineExceeded, match="the run at there has appended nothing for -1 s and has not ended"):
        await anext(parent_records("there", deadline_s=-1.0, open_parent=lambda where: _gone()))


@asynccontextmanager
async def _gone() -> AsyncIterator[OpenedRun]:
    raise LogUnavailable("there is no server")
    yield
