"""Test hanging roles: the run ends and names the role; a slow one holds up only its own group."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Never

import pytest

from schemas.errors import LogUnavailable
from schemas.rewards import RewardAssigned
from schemas.rollouts import Sampling
from schemas.runs import RunFailed
from schemas.steps import StepCommitted
from slime_events.core.run.participant import Participant
from slime_events.core.state.run import RunPhase
from slime_events.loop.conductor.decide import Stall
from slime_events.plugins.rewards.outcome import Outcome
from slime_events.plugins.sample import Sample
from tests import made
from tests.scripted_engine import Script
from tests.simulation.parts import InstantPool, Line, ScriptedRanks
from tests.simulation.roles import make_conductor, make_feed
from tests.simulation.simulation import Simulation, make_plan
from tests.simulation.test_run import check_run

PLAN = make_plan(steps=2, groups=1, samples=2, sampling=Sampling(max_new_tokens=8))


async def hang(*_: Any, **__: Any) -> Never:
    """Hang forever."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError


class HangingPool(InstantPool):
    """A grader that never returns, as none may: the pool has a time limit of its own."""

    grade = hang


class HangingRanks(ScriptedRanks):
    """Ranks of which one call never returns."""

    def __init__(self, call: str) -> None:
        super().__init__()
        setattr(self, call, hang)


def hangs(**parts: Any) -> dict[str, Any]:
    return {"script": Script(chunk=8), "plan": PLAN} | parts


STALLS: dict[str, tuple[dict[str, Any], str]] = {
    "an engine": (hangs(script=Script(seconds_per_chunk=1e6)), "2 samples to be generated"),
    "an engine that loads": (hangs(script=Script(seconds_to_update=1e6)), "an engine to activate version 0"),
    "a grader": (hangs(pool=HangingPool()), "2 samples to be graded"),
    "a trainer that starts": (hangs(ranks=HangingRanks("export_weights")), "the trainer to publish version 0"),
    "a trainer that trains": (hangs(ranks=HangingRanks("train")), "the trainer to commit step 0"),
    "a checkpoint": (
        hangs(ranks=HangingRanks("save_checkpoint"), plan=make_plan(steps=1, checkpoint_every=1)),
        "a checkpoint to be saved",
    ),
    "the role that has the prompts": (hangs(prompts=[]), "prompts for step 0"),
}


@pytest.mark.usefixtures("quick_looks")
@pytest.mark.parametrize("who", STALLS)
async def test_whoever_hangs_the_run_ends_with_what_it_waited_for(tmp_path: Path, who: str) -> None:
    parts, waited_for = STALLS[who]
    script = parts.pop("script")
    async with Simulation(tmp_path, deadline_s=0.4, **parts) as sim:
        sim.start_engine(script)
        (failed,) = await sim.until(RunFailed)
    assert failed.waited_for == waited_for
    assert failed.reason.startswith("no progress for ")
    assert failed.reason.endswith(" while waiting for " + waited_for)


async def test_a_log_that_is_away_too_long_ends_the_conductor_by_name(tmp_path: Path) -> None:
    """The log's own deadline is over: nobody can say anything any more, and the process ends with it."""
    log = await made.log(made.started(), run="sim")
    line = Line(log, is_cut=True)
    conductor = make_conductor(Participant(line, "conductor"), PLAN, make_feed(tmp_path, ["one"], {}))
    with pytest.raises(LogUnavailable):
        await asyncio.wait_for(conductor.run(), 60)


def test_a_stall_is_told_from_the_last_move_on() -> None:
    stall = Stall(10.0, 6.0, now=100.0)
    assert stall.seconds(1, 105.0) is None
    assert stall.seconds(1, 110.0) is None
    assert stall.seconds(1, 114.9) is None
    assert stall.seconds(1, 115.0) == 10.0
    assert stall.seconds(2, 116.0) is None
    assert stall.seconds(2, 122.0) is None
    assert stall.seconds(2, 126.5) == 10.5


def test_time_in_which_nobody_looked_is_no_stall() -> None:
    stall = Stall(10.0, 1.0, now=0.0)
    assert stall.seconds(1, 0.0) is None
    assert [stall.seconds(1, 1000.0 + n) for n in range(9)] == [None] * 9
    assert stall.seconds(1, 1009.0) == 10.0


class SlowJudge(InstantPool):
    """Takes its time over one prompt's samples, until it is let go."""

    def __init__(self, slow: str) -> None:
        super().__init__()
        self.let_go, self._slow = asyncio.Event(), slow

    async def grade(self, samples: Sequence[Sample], *, evaluation: bool = False) -> list[Outcome]:
        if samples[0].prompt == self._slow:
            await self.let_go.wait()
        return await super().grade(samples, evaluation=evaluation)


async def test_a_slow_judge_delays_its_own_group_only(tmp_path: Path) -> None:
    plan = make_plan(steps=3, groups=1, samples=2, max_staleness=2, in_prompt_order=False)
    judge = SlowJudge("prompt 0")
    async with Simulation(tmp_path, plan, pool=judge) as sim:
        sim.start_engine(Script(chunk=8))
        await sim.until(StepCommitted, 2)
        assert not sim.events(RewardAssigned, group="train-0-000000")
        judge.let_go.set()
        assert await sim.finish() is RunPhase.FINISHED
    check_run(sim)
    trained = [sample.group for batch in sim.ranks.trained for sample in batch.samples]
    assert trained[-1] == "train-0-000000", "late, and not lost"
