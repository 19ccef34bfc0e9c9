"""Test that a reward with values that the log cannot take costs that reward, and the grader grades the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from schemas.rewards import RewardAssigned, RewardFailed, RewardFailureKind
from slime_events.core.state.run import RunPhase
from slime_events.plugins.rewards.outcome import Graded
from slime_events.plugins.sample import Sample
from tests.hostile.deeds import HALF, LARGE
from tests.scripted_engine import Script
from tests.simulation.parts import InstantPool
from tests.simulation.simulation import Simulation, make_plan
from tests.simulation.test_run import check_run

DETAILS: dict[str, Any] = {
    "prompt 0": {"log": "y" * LARGE},
    "prompt 1": {"half": HALF},
    "prompt 2": {"object": object()},
    "prompt 3": {1: 2},
}
"""As no grader process sends them."""


def grade(sample: Sample) -> Any:
    number = len(sample.response) + sum(map(ord, sample.response[:3]))
    if sample.prompt == "prompt 4":
        return Graded(value=None, grader="test")  # type: ignore[arg-type]
    return Graded(value=number % 7, detail=DETAILS.get(str(sample.prompt), {}), grader="test")


@pytest.mark.parametrize("whole_groups", [False, True])
async def test_a_reward_that_the_log_refuses(tmp_path: Path, whole_groups: bool) -> None:
    plan = make_plan(steps=2, samples=2)
    async with Simulation(tmp_path, plan, pool=InstantPool(grade), whole_groups=whole_groups) as sim:
        sim.start_engine(Script(chunk=8))
        assert await sim.finish() is RunPhase.FINISHED
    check_run(sim)
    cut = [event for event in sim.events(RewardAssigned) if event.detail]
    assert {event.group[-1] for event in cut} == {"0", "1", "2", "3"}, "the number counts, the detail is left out"
    assert all(event.detail == {"...": "left out: the log does not accept it"} for event in cut)


async def test_a_reward_that_is_no_number_is_a_failure(tmp_path: Path) -> None:
    plan = make_plan(steps=3, samples=2)
    async with Simulation(tmp_path, plan, pool=InstantPool(grade)) as sim:
        sim.start_engine(Script(chunk=8))
        assert await sim.finish() is RunPhase.FINISHED
    check_run(sim)
    failed = sim.events(RewardFailed)
    assert {(event.group[-1], event.kind) for event in failed} == {("4", RewardFailureKind.INVALID)}
    assert "the log does not accept the grader" in failed[0].message
