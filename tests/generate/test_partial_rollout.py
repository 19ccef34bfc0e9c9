"""Rollouts of several turns that are suspended at step boundaries, and become several samples in the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.rollouts import RolloutCompleted, RolloutFailed, RolloutProgressed, RolloutSuspended
from schemas.steps import StepCommitted
from schemas.turns import TurnRecorded
from tests.generate import functions
from tests.generate.scene import a_run, check_log, events
from tests.scripted_engine import Script
from tests.simulation.crash import Crash, Fate, Half
from tests.simulation.simulation import make_plan

PLAN = make_plan(steps=4, groups=1, samples=2, draw=2, in_prompt_order=False, partial_rollout=True)
SCRIPT = Script(chunk=2, seconds_per_chunk=0.004)


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    functions.CALLS.clear()


async def test_they_go_on_after_their_last_turn_with_all_their_samples(tmp_path: Path) -> None:
    run = a_run(tmp_path, "uneven", PLAN, scripts=(SCRIPT,))
    await run.run()
    check_log(run)
    assert not events(run, RolloutFailed)
    rested = {event.sample for event in events(run, RolloutSuspended)}
    assert any(event.length for event in events(run, RolloutSuspended)), "with the tokens that it has"
    done = {event.sample: event for event in events(run, RolloutCompleted)}
    continued = rested & done.keys()
    assert continued
    assert all(f"{sample}-1" in done and done[f"{sample}-1"].rollout == sample for sample in continued)
    assert any(len({span.version for span in done[sample].spans}) > 1 for sample in continued)
    assert max(functions.CALLS.values()) == 1, "a tool call ends before its rollout is suspended"
    turns = [(event.sample, event.index) for event in events(run, TurnRecorded)]
    assert len(turns) == len(set(turns))
    assert len(events(run, StepCommitted)) == PLAN.steps


@pytest.mark.parametrize("at", [9, 17, 25])
async def test_engines_that_die_between_their_rests(tmp_path: Path, at: int) -> None:
    fate = Fate([Crash(at, Half.AFTER, role="engine0"), Crash(at, Half.BEFORE, role="engine0")])
    run = a_run(tmp_path, "uneven", PLAN, fate, scripts=(SCRIPT,))
    await run.run()
    assert run.fate.exhausted
    check_log(run)
    assert events(run, RolloutSuspended)
    assert events(run, RolloutProgressed)
    assert len(events(run, StepCommitted)) == PLAN.steps
    assert max(functions.CALLS.values()) == 1
