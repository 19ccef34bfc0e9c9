"""Test a run that continues from a version of another: what it draws, what it trains, and which role dies meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from schemas.arrays import unpack
from schemas.batches import BatchSealed
from schemas.errors import InvalidValue, RunNotFound, TrainerError
from schemas.evals import EvalCompleted
from schemas.prompts import PromptSubmitted
from schemas.rollouts import Sampling
from schemas.runs import Branched
from schemas.steps import StepCommitted
from schemas.weights import WeightsPublished
from slime_events.analysis.audit.audit import Audit, audit
from slime_events.analysis.views.read_run import view_run_now
from slime_events.analysis.views.version import view_version
from slime_events.app.cli.commands.show_run import run_text
from slime_events.app.cli.commands.show_step import version_text
from slime_events.app.cli.render.audit_text import report_text
from slime_events.core.state.run import RunPhase
from slime_events.loop.conductor.accept import GroupFilter
from slime_events.loop.conductor.plan import Plan
from slime_events.model import read_run
from slime_events.model.branch_point import read_point
from slime_events.model.progress import Progress
from tests import made
from tests.conductor.driver import dropping
from tests.harness.history.checker import check
from tests.scripted_engine import Script
from tests.simulation.crash import Scene
from tests.simulation.parts import CriticRanks, ScriptedRanks
from tests.simulation.roles import make_feed
from tests.simulation.simulation import Simulation, make_plan
from tests.simulation.test_crash import at_every_append, figures, one_thread  # noqa: F401  # a fixture

STEP = Script(chunk=8, seconds_per_chunk=0.001)
PROMPTS = [f"p{n}" for n in range(7)]
UNEVEN = (Script(chunk=4, eos=0, stop_chance=0.2), Script(chunk=1, seconds_per_chunk=0.001))


async def run(
    folder: Path, plan: Plan, *, judge: GroupFilter | None = None, uneven: bool = False, **more: Any
) -> Simulation:
    """A finished run over seven prompts, epoch after epoch."""
    folder.mkdir(exist_ok=True)
    async with Simulation(folder, plan, judge=judge, prompts=PROMPTS, **more) as sim:
        for script in UNEVEN if uneven else (STEP,):
            sim.start_engine(script)
        assert await sim.finish() is RunPhase.FINISHED
    return sim


def weights_of(parent: Simulation, branched: Branched) -> bytes:
    """Return the weights of the scripted ranks at the version, which are their own digest."""
    digests = {event.version: bytes.fromhex(event.optimizer_digest) for event in parent.events(StepCommitted)}
    return digests.get(branched.version, b"\0" * 32)


async def branch(
    parent: Simulation, version: int, *, folder: Path | None = None, plan: Plan | None = None, **more: Any
) -> Simulation:
    """A branch of it, over the same file of prompts."""
    branched = await read_point(parent.log, version, "parent")
    folder = folder or parent.folder
    disk = {f"{folder}/checkpoints/v{version:06d}": weights_of(parent, branched)}
    started = made.started(branched=branched)
    return await run(folder, plan or parent.plan, ranks=ScriptedRanks(disk=disk), started=started, **more)


def committed(sim: Simulation, first: int = 0) -> list[tuple[int, str, str, str]]:
    return [
        (e.step, e.batch_digest, e.weights_digest, e.optimizer_digest)
        for e in sim.events(StepCommitted)
        if e.step >= first
    ]


async def is_clean(sim: Simulation) -> None:
    """Neither the audit nor the independent checker finds anything."""
    records = [(recorded.position, recorded.subject, recorded.data) for recorded in sim.log.records]
    assert not check(records, bound=sim.plan.staleness_bound)
    report = await audit(sim.log.read(), Audit("sim", fetch=unpack, files=False))
    assert report.clean, report_text(report, 0)


@pytest.mark.parametrize("version", [0, 2, 4])
@pytest.mark.parametrize("judge", [None, dropping(0.3)], ids=["no filter", "filter"])
async def test_with_nothing_changed_it_makes_the_weights_of_its_parent(
    tmp_path: Path, version: int, judge: GroupFilter | None
) -> None:
    plan = make_plan(checkpoint_every=2, eval_every=2, eval_names=("held",))
    parent = await run(tmp_path, plan, judge=judge, evaluations={"held": ["one"]})
    sim = await branch(parent, version, judge=judge, evaluations={"held": ["one"]})
    assert committed(sim) == committed(parent, version)
    assert [event.version for event in sim.events(WeightsPublished)] == list(range(version, 6))
    assert sim.events(WeightsPublished)[0].digest == parent.events(WeightsPublished)[version].digest
    assert [e.version for e in sim.events(EvalCompleted)] == sorted({version, *range(version + version % 2, 6, 2), 5})
    assert sim.events(BatchSealed) == parent.events(BatchSealed)[version:]
    await is_clean(sim)


async def test_a_branch_goes_on_with_the_critic_of_its_parent(tmp_path: Path) -> None:
    parent = await run(tmp_path, make_plan(checkpoint_every=3), ranks=CriticRanks())
    critics = [event.critic_digest for event in parent.events(StepCommitted)]
    branched = await read_point(parent.log, 3, "parent")
    assert branched.critic_digest == critics[2]
    assert (await read_point(parent.log, 3, "parent", fresh_optimizer=True)).critic_digest == ""
    started = made.started(branched=branched)
    beginning = f"{tmp_path}/checkpoints/v000003"
    saved = parent.ranks.disk[beginning]
    sim = await run(tmp_path, parent.plan, ranks=CriticRanks(disk={beginning: saved}), started=started)
    assert [event.critic_digest for event in sim.events(StepCommitted)] == critics[3:]
    await is_clean(sim)
    without = await run(tmp_path, parent.plan, ranks=ScriptedRanks(disk={beginning: saved[:32]}), started=started)
    assert {event.critic_digest for event in without.events(StepCommitted)} == {""}
    other = CriticRanks(disk={beginning: saved[:32] + b"another"})
    with pytest.raises(TrainerError, match="cannot be loaded"):
        await run(tmp_path, parent.plan, ranks=other, started=started)


@pytest.mark.parametrize("uneven", [False, True], ids=["in order", "out of order"])
async def test_a_run_that_is_on_is_branched_off_from_as_one_that_has_ended(tmp_path: Path, uneven: bool) -> None:
    plan = make_plan(max_staleness=2, in_prompt_order=False) if uneven else make_plan()
    points: dict[int, Branched] = {}
    async with Simulation(tmp_path, plan, prompts=PROMPTS) as parent:
        for script in UNEVEN if uneven else (STEP,):
            parent.start_engine(script)
        for step in (0, 1):
            await parent.until(StepCommitted, step=step)
            points[step + 1] = await read_point(parent.log, step + 1, "parent")
        feed = make_feed(tmp_path, PROMPTS, {})
        sim = await branch(parent, 2, folder=tmp_path / "branch", plan=plan, uneven=uneven, feed=feed)
        assert await parent.finish() is RunPhase.FINISHED
    assert points == {version: await read_point(parent.log, version, "parent") for version in points}
    await is_clean(sim)
    await is_clean(parent)
    if not uneven:
        assert committed(sim) == committed(parent, 2)


async def test_a_branch_of_a_branch_and_with_more_steps(tmp_path: Path) -> None:
    parent = await run(tmp_path, make_plan())
    first = await branch(parent, 2)
    again, before = await read_point(first.log, 2, "x"), await read_point(parent.log, 2, "x")
    assert (again.cursors, again.weights_digest) == (before.cursors, before.weights_digest)
    second = await branch(first, 3, plan=make_plan(steps=7))
    assert committed(second)[:2] == committed(parent, 3)
    assert second.fold().steps == 7
    await is_clean(second)
    with pytest.raises(InvalidValue, match="version 1 was made by run sim"):
        await read_point(first.log, 1, "x")
    with pytest.raises(RunNotFound, match="no weight version 9: there are 2 to 5"):
        await read_point(first.log, 9, "x")


async def test_it_says_where_it_comes_from(tmp_path: Path) -> None:
    sim = await branch(await run(tmp_path, make_plan()), 2)
    progress = Progress("sim")
    records = await read_run(sim.log, progress.apply)
    text = run_text(view_run_now(records, progress, progress.figures.steps))
    assert "from version 2 of sim (parent)" in text
    assert " 5, 3 of its own, weight version 5" in text
    assert "made by    sim, the parent run" in version_text(view_version(records, records.versions[2]))
    assert (progress.summary()["steps"], progress.summary()["first_version"]) == (5, 2)


@dataclass(frozen=True)
class Drawn:
    """Offsets of prompts: all that a run drew, and those of them in batches of steps before a version."""

    every: dict[str, int]

    @classmethod
    def of(cls, sim: Simulation) -> Drawn:
        return cls({event.group: event.source.offset for event in sim.events(PromptSubmitted)})

    def trained(self, sim: Simulation, before: int) -> set[int]:
        batches = [batch for batch in sim.events(BatchSealed) if batch.step < before]
        return {self.every[group] for batch in batches for group in batch.groups}


async def test_out_of_order_no_prompt_comes_twice_and_none_is_left_out(tmp_path: Path) -> None:
    plan = make_plan(steps=6, max_staleness=2, in_prompt_order=False)
    parent = await run(tmp_path, plan, uneven=True)
    drawn, passed = Drawn.of(parent), dict[int, int]()
    for version in range(7):
        point = await read_point(parent.log, version, "parent")
        (cursor,) = point.cursors.values() or (0,)
        over = {offset for offsets in point.passed.values() for offset in offsets}
        past = drawn.trained(parent, version)
        assert past == {*range(cursor), *over}
        passed[version] = len(over)
    version = max(range(1, 6), key=passed.__getitem__)
    assert passed[version], "the order was another one at least once"
    sim = await branch(parent, version, plan=plan, uneven=True)
    own, past = Drawn.of(sim), drawn.trained(parent, version)
    assert not past & set(own.every.values())
    assert {*past, *own.every.values()} == set(range(len(past) + len(own.every)))
    await is_clean(sim)


SMALL = make_plan(steps=2, groups=1, samples=2, sampling=Sampling(max_new_tokens=8), checkpoint_every=2)


async def test_every_process_of_a_branch_dies_at_each_append(tmp_path: Path) -> None:
    parent = await run(tmp_path / "parent", SMALL)
    branched = await read_point(parent.log, 1, "parent")
    scene = Scene(plan=SMALL, branched=branched, beginning=weights_of(parent, branched))
    assert await at_every_append(scene, tmp_path / "branch", figures) > 8


async def test_a_beginning_that_is_not_there_is_named(tmp_path: Path) -> None:
    parent = await run(tmp_path, SMALL)
    started = made.started(branched=await read_point(parent.log, 1, "parent"))
    async with Simulation(tmp_path, SMALL, started=started) as sim:
        with pytest.raises(TrainerError, match=r"branches from version 1, which cannot be loaded: .*v000001"):
            await asyncio.wait_for(sim.disown_trainer(), 60)
