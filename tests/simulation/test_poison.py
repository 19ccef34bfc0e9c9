"""A request that ends engines is failed at the second one, and those beside it are made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from schemas.arrays import unpack
from schemas.errors import EngineLost
from schemas.groups import GroupRejected
from schemas.rollouts import FailureKind, RolloutCompleted, RolloutFailed, RolloutRequested
from schemas.workers import WorkerLost
from serve_apps.engines.engine import Delta, GenerateRequest
from serve_apps.engines.sglang_engine import ended_from_outside
from serve_apps.rollouts.suspects import MOST_LOST
from slime_events.core.run.participant import Participant
from slime_events.core.state.run import RunPhase
from tests.scripted_engine import Script, ScriptedEngine
from tests.simulation.simulation import Simulation, make_plan
from tests.simulation.test_run import check_run

POISON = "prompt 3"


class Mortal(ScriptedEngine):
    """Ends by itself once it is asked for the poison and has made a few tokens of others. killed: from outside."""

    def __init__(self, *, killed: bool = False) -> None:
        super().__init__(Script(chunk=4, seconds_per_chunk=0.002))
        self._killed = killed

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        if "".join(map(chr, request.prompt.tolist())) == POISON:
            await asyncio.sleep(0.003)
            self._dead, self.was_killed = "IndexError: index out of range", self._killed
        async for delta in super().generate(request):
            yield delta


async def replaced(sim: Simulation, make: Callable[[int], ScriptedEngine]) -> int:
    """Engines one after the other, as a replica has them, until one outlives the run; how many were lost."""
    for number in range(20):
        name = f"engine-{number}"
        sim.start_engine(make(number), name=name, lease_s=0.3)
        task = sim.engines.pop(name)
        sim.lines.pop()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        if not isinstance(result, EngineLost):
            if isinstance(result, BaseException):
                raise result
            return number
        lost = WorkerLost(worker=name, role="engine", reason=str(result), requests=result.requests)
        await Participant(sim.log, "engine", name).append([lost])
    raise AssertionError("engines end without end")


async def test_a_request_that_ends_engines_is_failed_at_the_second_one(tmp_path: Path) -> None:
    plan = make_plan(groups=3)
    async with Simulation(tmp_path, plan) as sim:
        engines = asyncio.create_task(replaced(sim, lambda _: Mortal()))
        assert await sim.finish() is RunPhase.FINISHED
        lost = await engines
    check_run(sim)
    poisoned = {
        event.sample
        for event in sim.events(RolloutRequested)
        if "".join(map(chr, unpack(event.prompt).tolist())) == POISON
    }
    failed = sim.events(RolloutFailed)
    assert {event.sample for event in failed} <= poisoned, "those beside it are made"
    assert {event.kind for event in failed} == {FailureKind.INVALID}, "nobody asks for it again"
    assert "2 engines crashed" in failed[0].message
    assert not poisoned & {event.sample for event in sim.events(RolloutCompleted)}
    assert lost <= MOST_LOST * len(poisoned), "each of its samples ends two at most, and the first is of all"
    assert len(sim.events(GroupRejected)) == 1


async def test_engines_that_are_killed_from_outside_fail_nobody(tmp_path: Path) -> None:
    async with Simulation(tmp_path, make_plan(groups=3)) as sim:
        engines = asyncio.create_task(
            replaced(sim, lambda n: Mortal(killed=True) if n < 6 else ScriptedEngine(Script(chunk=4)))
        )
        assert await sim.finish() is RunPhase.FINISHED
        assert await engines == 6
    check_run(sim)
    assert not sim.events(RolloutFailed)
    assert not any(event.requests for event in sim.events(WorkerLost))


@pytest.mark.parametrize(
    ("text", "outside"),
    [
        ("", True),
        ("SchedulerError: the process 7 ended with exit code -9\n", True),
        ("SchedulerError: the process 7 ended with exit code -15\n", True),
        ("SchedulerError: the process 7 ended with exit code -11\n", False),
        ("SchedulerError: the process 7 ended with exit code 1\n", False),
        (
            "Scheduler hit an exception: \nIndexError: x\nSchedulerError: the process 7 ended with exit code -9",
            False,
        ),
        ("IndexError: index out of range\n", False),
    ],
)
def test_who_has_ended_an_engine(text: str, outside: bool) -> None:
    assert ended_from_outside(text) is outside
