"""An evaluation by a generate function: each of its turns is made by the version that it is of."""

from __future__ import annotations

from pathlib import Path

from schemas.evals import EvalCompleted
from schemas.event import Purpose
from schemas.rollouts import RolloutCompleted, RolloutRequested
from schemas.turns import TurnRecorded, TurnRole
from schemas.weights import WeightsActivated
from tests.generate.scene import a_run, check_log, events
from tests.scripted_engine import Script
from tests.simulation.simulation import make_plan

PLAN = make_plan(steps=3, groups=1, samples=2, eval_every=2, eval_names=("held",), eval_samples=2, eval_exact=True)


async def test_turns_of_an_evaluation_go_on_with_its_weights(tmp_path: Path) -> None:
    scripts = (Script(chunk=1, seconds_per_chunk=0.003),)
    run = a_run(tmp_path, "longer_when_evaluated", PLAN, evaluations={"held": ["one", "two"]}, scripts=scripts)
    await run.run()
    check_log(run)
    versions = {event.sample: event.max_version for event in events(run, RolloutRequested, purpose=Purpose.EVAL)}
    completed = [event for event in events(run, RolloutCompleted) if event.sample in versions]
    completed += [event for event in events(run, TurnRecorded, role=TurnRole.ASSISTANT) if event.sample in versions]
    assert len(completed) == len(versions) * 7
    assert all({span.version for span in event.spans} == {versions[event.sample]} for event in completed)
    assert any(event.returns for event in events(run, WeightsActivated)), "they were paused"
    assert sorted(event.version for event in events(run, EvalCompleted)) == [0, 2, 3]
