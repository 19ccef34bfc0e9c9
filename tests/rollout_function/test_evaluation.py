"""Evaluations that a user's function makes, beside training."""

from pathlib import Path
from typing import Any

import pytest

from schemas.errors import PlugPointError
from schemas.evals import EvalCompleted
from schemas.rollouts import RolloutCompleted, RolloutRequested, RolloutReturned
from slime_events.core.state.run import RunPhase
from slime_events.plugins.rollout_types import RolloutFnEvalOutput
from tests.rollout_function.scene import FUNCTIONS, a_run, check_log, runner
from tests.scripted_engine import Script

EVALS = {"evals_by_function": True, "eval_exact": True, "eval_every": 1}


@pytest.mark.parametrize("name", ["both", "wrapped_and_evaluated"])
async def test_a_rollout_function_evaluates_each_version(tmp_path: Path, name: str) -> None:
    """Training does not wait for it, and the answers are of the version that is evaluated."""
    async with a_run(tmp_path, **EVALS) as run:
        run.start_engine(Script(chunk=4, seconds_per_chunk=0.01))
        run.start_role("function", runner(run, name, name).run())
        assert await run.finish() is RunPhase.FINISHED
    held, other = (run.events(EvalCompleted, dataset=name) for name in ("held", "other"))
    assert [event.version for event in held] == [event.version for event in other] == [0, 1, 2, 3]
    assert [(event.mean, event.rewards, event.truncated) for event in held] == [(0.5, (1.0, 0.0), (True, True))] * 4
    assert [(event.oldest_version, event.newest_version) for event in held] == [
        (version, version) for version in range(4)
    ]
    assert {event.function for event in held} == {f"{FUNCTIONS}:{name}"}
    assert [event.metrics for event in run.events(RolloutReturned, evaluation=True)] == [{"eval/seconds": 2.0}] * 4
    check_log(run)


async def test_it_goes_on_after_a_kill(tmp_path: Path) -> None:
    """The answers in the log are not made again."""
    async with a_run(tmp_path, steps=1, **EVALS) as run:
        run.start_engine(Script(chunk=2, seconds_per_chunk=0.02))
        first = run.start_role("function", runner(run, None, "evaluates").run())
        second = run.start_role("other", runner(run, "external").run())
        await run.until(RolloutCompleted, engine="engine-1")
        await run.kill_role(first)
        run.start_role("function", runner(run, None, "evaluates").run())
        assert await run.finish() is RunPhase.FINISHED
        assert second.done()
    assert [event.version for event in run.events(EvalCompleted, dataset="held")] == [0, 1]
    calls = run.events(RolloutRequested, purpose="call")
    assert sorted(call.group.split("-")[1] for call in calls) == ["eval0"] * 2 + ["eval1"] * 2
    check_log(run)


async def test_what_is_no_result_ends_its_process(tmp_path: Path) -> None:
    async with a_run(tmp_path, **EVALS) as run:
        with pytest.raises(PlugPointError, match=r"--eval-function-path: .*evaluation of v0"):
            await runner(run, None, "external").run()


class Unreadable(dict[str, Any]):
    def items(self) -> Any:
        raise ValueError("unreadable")


async def unreadable(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    return RolloutFnEvalOutput(Unreadable(held={"rewards": [1.0]}))


async def test_what_cannot_be_read_names_its_function(tmp_path: Path) -> None:
    async with a_run(tmp_path, **EVALS) as run:
        with pytest.raises(PlugPointError, match=r":unreadable .*evaluation of v0"):
            await runner(run, None, f"{__name__}:unreadable").run()
        assert run.events(EvalCompleted) == run.events(RolloutReturned) == []
