"""A run that is resumed while roles of its life before are still there, as on a machine that was cut off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from schemas.errors import Conflict
from schemas.rollouts import RolloutCompleted, RolloutProgressed
from schemas.runs import RunFailed, RunFinished, RunResumed
from schemas.steps import StepCommitted
from schemas.subjects import about
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_address import Incarnation
from slime_events.core.state.run import RunPhase
from storage.cancellation import end_all
from storage.log import Append, Fence, Recorded, Subjects
from tests import made
from tests.scripted_engine import Script
from tests.simulation.parts import Line
from tests.simulation.roles import make_conductor
from tests.simulation.simulation import Simulation, make_plan
from tests.simulation.test_run import check_run


async def resume(sim: Simulation) -> int:
    """Resume like the launcher; return the position."""
    subject = about(sim.log.run, "run", "run")
    last = await sim.log.last(subject)
    assert last is not None
    resumed = made.resumed()
    return await Participant(sim.log, "launcher").append_fenced(resumed, Fence(subject, last.position))


async def test_every_role_of_an_earlier_incarnation_ends_without_a_word(tmp_path: Path) -> None:
    async with Simulation(tmp_path, make_plan(steps=1000), incarnation=Incarnation()) as sim:
        sim.start_engine(Script(chunk=8, seconds_per_chunk=0.002))
        await sim.until(StepCommitted, 2)
        position = await resume(sim)
        await sim.finish()
    assert not sim.events(RunFinished)
    assert not sim.events(RunFailed)
    late = [r.envelope.type for r in sim.log.records[position:] if r.envelope.type != "rollout.progressed"]
    assert len(late) < 50, "what was under way, and no more"


@dataclass(eq=False)
class Blind(Line):
    """A way to the log on which news of a resumption has not come yet. refused: what would have failed the run was."""

    refused: asyncio.Event = field(default_factory=asyncio.Event)

    async def append(self, appends: Sequence[Append]) -> list[int]:
        try:
            return await super().append(appends)
        except Conflict:
            if isinstance(appends[0].envelope.event, RunFailed):
                self.refused.set()
            raise

    async def read(self, start: int = 1, subject: Subjects = None, *, follow: bool = False) -> AsyncIterator[Recorded]:
        async for recorded in super().read(start, subject, follow=follow):
            if not isinstance(recorded.envelope.event, RunResumed):
                yield recorded

    async def position(self) -> int:
        return len([recorded async for recorded in self.read()])


@pytest.mark.usefixtures("quick_looks")
async def test_a_conductor_that_is_late_cannot_fail_the_run(tmp_path: Path) -> None:
    sim = Simulation(tmp_path)
    await Participant(sim.log, "launcher").append([made.started()])
    await resume(sim)
    line = Blind(sim.log)
    late = make_conductor(Participant(line, "conductor"), sim.plan, sim.feed, deadline_s=0.1)
    task = asyncio.create_task(late.run())
    async with asyncio.timeout(60):
        await line.refused.wait()
    await end_all(task)
    assert task.cancelled()
    assert late.state.phase is RunPhase.RUNNING
    assert not sim.events(RunFailed)


async def test_what_engines_of_an_earlier_incarnation_hold_comes_at_once(tmp_path: Path) -> None:
    """Their leases have long to go. All begins from what the log holds: no token is made twice."""
    script = Script(chunk=4, seconds_per_chunk=0.005)
    async with Simulation(tmp_path, make_plan(steps=2)) as sim:
        lost = sim.start_engine(script, lease_s=600.0)
        await sim.until(RolloutProgressed, 4)
        await sim.kill(lost)
        assert set(lost.taken) - set(lost.acked)
        since, done = await resume(sim), await sim.log.done_up_to("engines")
        sim.begin_incarnation(Incarnation(number=1, since=since, requests_from=done + 1))
        sim.start_engine(script, lease_s=600.0)
        assert await sim.finish(dead=[lost]) is RunPhase.FINISHED
    check_run(sim)
    assert any(event.start > 0 and event.engine == "engine-2" for event in sim.events(RolloutCompleted))
