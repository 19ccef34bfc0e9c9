"""Test faulty generate functions: their failures are data, and the run continues or ends with a reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from schemas.errors import PlugPointError
from schemas.groups import GroupRejected, RejectionCause
from schemas.rewards import RewardAssigned
from schemas.rollouts import FailureKind, RolloutCompleted, RolloutFailed
from schemas.steps import StepCommitted
from schemas.turns import TurnRecorded, TurnRole
from serve_apps.rollouts.generate.function import GenerateFunction, generate_setup
from slime_events.core.config.rollout import RolloutSettings
from slime_events.core.config.settings import TrainSettings
from tests import made
from tests.generate.scene import a_run, events, run_until, setup
from tests.simulation.crash import Crash, Crashed, Fate, Half

TWO_TURNS = "tests.generate.functions:two_turns"


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("raises", r"functions:raises raised ZeroDivisionError: division by zero \(functions.py:\d+ in raises\)"),
        ("exits", r"functions:exits raised SystemExit: 3 \(functions.py:\d+ in exits\)"),
        ("cancels_what_it_waits_for", r"functions:cancels_what_it_waits_for raised CancelledError: "),
        ("returns_nothing", "returned None, not a Sample or a list"),
        ("no_response", "has 0 tokens, 0 of them response"),
    ],
)
async def test_a_function_that_breaks_rejects_its_groups_with_the_reason(
    tmp_path: Path, function: str, reason: str
) -> None:
    await check_rejected(a_run(tmp_path, function), reason)


async def test_a_function_has_its_time(tmp_path: Path) -> None:
    reason = r"functions:sleeps took longer than 0.2 s for train-0-0000\d\d-s0 \(--generate-timeout\)"
    await check_rejected(a_run(tmp_path, setup("sleeps", timeout_s=0.2)), reason)


async def check_rejected(run: Crashed, reason: str) -> None:
    """Check a run whose rollouts all fail."""
    await run_until(run, GroupRejected)
    failures = events(run, RolloutFailed)
    assert {failure.kind for failure in failures} == {FailureKind.INVALID}
    rejected = events(run, GroupRejected)
    assert {event.cause for event in rejected} == {RejectionCause.ROLLOUT_FAILED}
    for event in rejected:
        assert re.search(reason, event.reason), event.reason


async def test_a_function_that_blocks_loses_no_lease(tmp_path: Path) -> None:
    run = a_run(tmp_path, "blocks")
    await run.run()
    assert len(events(run, RolloutCompleted)) == len(events(run, StepCommitted)) == 1
    assert not events(run, RolloutFailed)


async def test_a_tool_that_raises_is_a_turn(tmp_path: Path) -> None:
    run = a_run(tmp_path, "hides_a_failed_tool")
    await run.run()
    (tool,) = events(run, TurnRecorded, role=TurnRole.TOOL)
    assert "load_function raised PlugPointMissing" in tool.error
    (done,) = events(run, RolloutCompleted)
    assert done.metadata == {"tool": tool.error}


async def test_a_tool_that_exits_is_a_turn(tmp_path: Path) -> None:
    run = a_run(tmp_path, "calls_a_tool_that_exits")
    await run.run()
    (tool,) = events(run, TurnRecorded, role=TurnRole.TOOL)
    assert "sys:exit raised SystemExit" in tool.error
    assert len(events(run, StepCommitted)) == 1


async def test_a_task_that_exits_leaves_the_others_their_loop(tmp_path: Path) -> None:
    run = a_run(tmp_path, "begins_a_task_that_exits")
    await run.run()
    assert not events(run, RolloutFailed)
    assert len(events(run, StepCommitted)) == 1


async def test_a_function_may_grade(tmp_path: Path) -> None:
    run = a_run(tmp_path, "graded")
    await run.run()
    (reward,) = events(run, RewardAssigned)
    assert reward.grader == "tests.generate.functions:graded"
    assert reward.detail is not None
    assert reward.value == reward.detail["score"]
    assert reward.detail["why"] == "first token"


async def test_a_function_that_changes_its_mind_is_told(tmp_path: Path) -> None:
    """Run again after a crash, it asks for something else than the log holds."""
    file = tmp_path / "fickle.py"
    file.write_text(
        "asked = []\n"
        "async def generate(args, sample, sampling_params, *, session):\n"
        "    asked.append(1)\n"
        "    sample.tokens = session.tokenize('once' if len(asked) == 1 else 'again')\n"
        "    for _ in range(2):\n"
        "        (await session.generate(sample.tokens, {'max_new_tokens': 8})).add_to(sample)\n"
        "    return sample\n"
    )
    run = a_run(tmp_path / "run", setup(f"{file}:generate"), fate=Fate([Crash(4, Half.AFTER, role="engine0")]))
    await run.run()
    (failed,) = events(run, RolloutFailed)
    assert failed.kind is FailureKind.INVALID
    assert "requests a generation, but the log has turn 0, a generation" in failed.message
    assert "no clock, no randomness" in failed.message


async def test_a_function_that_asks_for_less_than_before_is_told(tmp_path: Path) -> None:
    """Run again after a crash, it ends without a turn that the log holds."""
    file = tmp_path / "brief.py"
    file.write_text(
        "asked = []\n"
        "async def generate(args, sample, sampling_params, *, session):\n"
        "    asked.append(1)\n"
        "    sample.tokens = session.tokenize(sample.prompt)\n"
        "    for _ in range(3 if len(asked) == 1 else 1):\n"
        "        (await session.generate(sample.tokens, {'max_new_tokens': 8})).add_to(sample)\n"
        "    return sample\n"
    )
    run = a_run(tmp_path / "run", setup(f"{file}:generate"), fate=Fate([Crash(6, Half.AFTER, role="engine0")]))
    await run.run()
    (failed,) = events(run, RolloutFailed)
    assert failed.kind is FailureKind.INVALID
    assert "ended without requesting turn 1, a generation, which the log holds" in failed.message
    assert not events(run, RolloutCompleted, sample=failed.sample)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def generate(args, sample, sampling_params): ...\n", "must be `async def`"),
        ("async def other(args, sample, sampling_params): ...\n", "has no generate"),
        ("import nowhere_at_all\n", "nowhere_at_all"),
    ],
)
def test_a_function_that_cannot_be_used_is_named(tmp_path: Path, source: str, message: str) -> None:
    file = tmp_path / f"bad_{abs(hash(source))}.py"
    file.write_text(source)
    with pytest.raises(PlugPointError, match=message):
        GenerateFunction(str(file), tmp_path)


def test_a_function_that_is_not_there_ends_the_run_before_it_starts() -> None:
    rollout = RolloutSettings(custom_generate_function_path="nowhere.py:generate")
    with pytest.raises(PlugPointError, match=r"no file .*nowhere.py"):
        generate_setup(TrainSettings(rollout=rollout))
    setup = generate_setup(made.settings(rollout={"custom_generate_function_path": TWO_TURNS, "max_turns": 2}))
    assert setup is not None
    assert setup.args["max_turns"] == 2
    assert setup.args["sglang_router_ip"] == "127.0.0.1"
