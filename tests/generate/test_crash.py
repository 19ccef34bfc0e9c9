"""Engines that die at each of their appends, while a generate function with a tool makes the rollout."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.groups import GroupRejected
from schemas.rollouts import FailureKind, RolloutCompleted, RolloutFailed
from schemas.runs import RunFailed
from schemas.steps import StepCommitted
from schemas.turns import TurnBegun, TurnRecorded, TurnRole
from tests.generate import functions
from tests.generate.scene import a_run, check_log, events
from tests.simulation.crash import Crash, Crashed, Fate, Half, Scope

APPENDS = 9
"""Of the engine in a run of `two_turns`: weights, two turns of two chunks and an end, tool begun and ended, the end."""


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    functions.CALLS.clear()


def engine_dies(at: int, half: Half, again: int = 0) -> Fate:
    return Fate([Crash(at, half, role="engine0"), *([Crash(again, half, role="engine0")] if again else [])])


async def whole(folder: Path, function: str) -> Crashed:
    run = a_run(folder, function)
    await run.run()
    functions.CALLS.clear()
    return run


def in_flight(run: Crashed) -> int:
    """Tool calls that began and that nobody heard the end of."""
    begun = {(event.sample, event.index) for event in events(run, TurnBegun, role=TurnRole.TOOL)}
    return len(begun - {(event.sample, event.index) for event in events(run, TurnRecorded)})


@pytest.mark.parametrize("half", Half)
@pytest.mark.parametrize("at", range(1, APPENDS + 1))
async def test_a_rollout_goes_on_after_its_last_turn(tmp_path: Path, at: int, half: Half) -> None:
    untouched = await whole(tmp_path / "whole", "two_turns")
    run = a_run(tmp_path / "crashed", "two_turns", fate=engine_dies(at, half))
    await run.run()
    check_log(run)
    assert run.fate.exhausted, "the engine has fewer appends than that"
    assert not events(run, RolloutFailed)
    assert events(run, RolloutCompleted)[0].digest == events(untouched, RolloutCompleted)[0].digest
    assert events(run, StepCommitted)[0].weights_digest == events(untouched, StepCommitted)[0].weights_digest
    assert len(events(run, TurnRecorded)) == 3, "no turn is there twice"
    assert 1 <= functions.CALLS.total() <= 1 + in_flight(run), "only a call that was in flight is repeated"


@pytest.mark.parametrize("half", Half)
@pytest.mark.parametrize("at", range(1, APPENDS + 1))
async def test_a_tool_that_may_not_be_repeated_is_called_once(tmp_path: Path, at: int, half: Half) -> None:
    run = a_run(tmp_path, "two_careful_turns", fate=engine_dies(at, half))
    await run.run()
    assert max(functions.CALLS.values()) == 1
    failed = events(run, RolloutFailed)
    assert len(failed) == in_flight(run)
    for failure in failed:
        assert failure.kind is FailureKind.INVALID
        assert "look_up" in failure.message
        assert "in flight" in failure.message
        assert "may_repeat" in failure.message
        assert failure.message in events(run, GroupRejected)[0].reason
    assert not events(run, RunFailed)
    assert len(events(run, StepCommitted)) == 1


async def test_dying_again_while_the_log_answers(tmp_path: Path) -> None:
    untouched = await whole(tmp_path / "whole", "two_turns")
    run = a_run(tmp_path / "crashed", "two_turns", fate=engine_dies(6, Half.AFTER, again=2))
    await run.run()
    check_log(run)
    assert run.fate.exhausted
    assert events(run, StepCommitted)[0].weights_digest == events(untouched, StepCommitted)[0].weights_digest
    assert 1 <= functions.CALLS.total() <= 1 + in_flight(run)


@pytest.mark.parametrize("at", range(5, 16, 2))
async def test_everything_dies_at_once(tmp_path: Path, at: int) -> None:
    untouched = await whole(tmp_path / "whole", "two_turns")
    run = a_run(tmp_path / "crashed", "two_turns", fate=Fate([Crash(at, Half.AFTER, Scope.MACHINE)]))
    await run.run()
    check_log(run)
    assert run.fate.exhausted
    assert events(run, StepCommitted)[0].weights_digest == events(untouched, StepCommitted)[0].weights_digest
    assert 1 <= functions.CALLS.total() <= 1 + in_flight(run)
