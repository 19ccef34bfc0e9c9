"""The conductor's shell: it holds nothing that the log does not, and offloads what is large."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors.conductor import TICK_S, Conductor
from schemas.arrays import Array, BlobRef
from schemas.batches import BatchSealed
from schemas.errors import StorageError
from schemas.evals import EvalCompleted
from schemas.prompts import PromptSubmitted
from schemas.rollouts import RolloutProgressed, RolloutRequested
from schemas.runs import RunFailed, RunFinished
from slime_events.core.run.participant import Participant
from slime_events.core.state.run import RunPhase
from storage.cancellation import end_all
from storage.log import once
from storage.memory_log import MemoryLog
from tests.scripted_engine import Script
from tests.simulation.roles import inline, make_conductor, make_feed
from tests.simulation.simulation import Simulation, make_plan
from tests.simulation.test_run import check_run


def successor(sim: Simulation, offload: Any = inline, deadline_s: float = 10.0) -> Conductor:
    return make_conductor(Participant(sim.log, "conductor"), sim.plan, sim.feed, offload=offload, deadline_s=deadline_s)


@pytest.mark.parametrize("staleness", [0, 1])
async def test_conductors_that_die_are_replaced_without_a_trace(tmp_path: Path, staleness: int) -> None:
    plan = make_plan(max_staleness=staleness, eval_every=2, eval_names=("held",))
    async with Simulation(tmp_path, plan, evaluations={"held": ["a", "b"]}) as sim:
        sim.start_engine(Script(chunk=4, seconds_per_chunk=0.001))
        for step in range(4):
            await sim.until(BatchSealed, step + 1)
            sim._roles[0].cancel()
            await asyncio.wait(sim._roles[:1])
            sim.conductor = successor(sim)
            sim._roles[0] = asyncio.create_task(sim.conductor.run())
        assert await sim.finish() is RunPhase.FINISHED
    check_run(sim)
    drawn = [event.source.offset for event in sim.events(PromptSubmitted, dataset="train")]
    assert drawn == list(range(len(drawn))), "each prompt once, in order"
    assert [event.version for event in sim.events(EvalCompleted)] == [0, 2, 4, 5]
    assert len(sim.events(RunFinished)) == 1


async def test_an_evaluation_begun_in_part_is_completed(tmp_path: Path) -> None:
    """Its events are more than one atomic append may hold: a conductor can die between two of them."""
    plan = make_plan(steps=1, eval_every=1, eval_names=("held",), eval_samples=2)
    async with Simulation(tmp_path, plan, evaluations={"held": ["a", "b", "c"]}) as sim:
        first = next(iter(sim.feed.evaluation("held", 0)))
        await sim.log.append([once(Participant(sim.log, "conductor").enclose(first))])
        sim.start_engine(Script(chunk=8))
        assert await sim.finish() is RunPhase.FINISHED
    assert [(event.version, event.samples) for event in sim.events(EvalCompleted)] == [(0, 6), (1, 6)]


async def test_large_prompts_go_to_the_blob_store(tmp_path: Path) -> None:
    """In the prompt, and in every request that repeats it."""

    async def offload(event: Any) -> Any:
        if not isinstance(event, PromptSubmitted | RolloutRequested):
            return event
        field = "tokens" if isinstance(event, PromptSubmitted) else "prompt"
        array = Array(dtype="int32", n=getattr(event, field).n, blob=BlobRef("0" * 64, 4))
        return type(event)(**{name: getattr(event, name) for name in event.__struct_fields__} | {field: array})

    async with Simulation(tmp_path) as sim:
        sim._roles[0].cancel()
        sim.conductor = successor(sim, offload)
        sim._roles[0] = asyncio.create_task(sim.conductor.run())
        requests = await sim.until(RolloutRequested, 6)
        assert all(request.prompt.blob is not None and not request.prompt.data for request in requests)
        assert all(event.tokens.blob is not None for event in sim.events(PromptSubmitted))


@pytest.mark.usefixtures("quick_looks")
async def test_a_slow_but_moving_run_is_not_a_stall(tmp_path: Path) -> None:
    """Chunks alone are progress."""
    plan = make_plan(steps=1, groups=1, samples=1)
    async with Simulation(tmp_path, plan, deadline_s=0.9) as sim:
        sim.start_engine(Script(chunk=8, seconds_per_chunk=0.4))
        assert await sim.finish() is RunPhase.FINISHED
    assert len(sim.events(RolloutProgressed)) == 2


async def test_a_conductor_that_fails_says_why(tmp_path: Path) -> None:
    async def offload(event: Any) -> Any:
        raise StorageError("no room for prompts")

    async with Simulation(tmp_path) as sim:
        sim._roles[0].cancel()
        await asyncio.wait(sim._roles[:1])
        with pytest.raises(StorageError):
            await successor(sim, offload).run()
        (failed,) = sim.events(RunFailed)
        assert (failed.role, failed.reason) == ("conductor", "no room for prompts")


async def test_a_conductor_with_nothing_to_read_yet_looks_again(tmp_path: Path) -> None:
    """Look again like a conductor that begins with a snapshot of the whole log."""
    log = MemoryLog("sim")
    conductor = make_conductor(Participant(log, "conductor"), make_plan(), make_feed(tmp_path, ["a"], {}))
    running = asyncio.create_task(conductor.run())
    done, _ = await asyncio.wait([running], timeout=3 * TICK_S)
    assert not done, "it waits for the run's start"
    await end_all(running)
