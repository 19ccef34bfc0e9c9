"""A run whose rollouts a rollout function makes: `Simulation` with one more role."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from schemas.arrays import unpack
from schemas.codec import decode
from serve_apps.rollouts.rollout_function.function import EVALUATION, ROLLOUT, RolloutFunction
from serve_apps.rollouts.rollout_function.runner import FunctionRunner, RunnerContext
from slime_events.analysis.audit.audit import Audit
from slime_events.core.config.rollout import RolloutSettings
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.participant import Participant
from slime_events.loop.conductor.plan import Plan
from slime_events.plugins.args_view import ArgsView
from storage.log import Recorded
from tests import made
from tests.replay.replayed import policy_for, replayed
from tests.simulation.parts import Letters
from tests.simulation.roles import inline
from tests.simulation.seconds import check_seconds
from tests.simulation.simulation import Simulation, make_plan

FUNCTIONS = "tests.rollout_function.functions"


def a_run(folder: Path, **changes: Any) -> Simulation:
    """Three steps of two groups of two samples. changes: of the plan."""
    more = {name: changes.pop(name) for name in ("prompts", "deadline_s", "pool", "train_s", "log") if name in changes}
    plan = make_plan(**{"steps": 3, "samples": 2, "by_function": True, "verdicts_at_once": True} | changes)
    return Simulation(folder, plan, started=made.started(), **more)


def runner(
    run: Simulation,
    train: str | None,
    evaluate: str | None = None,
    *,
    log: Any = None,
    keeper: Any = None,
    grades: bool = True,
    **args: Any,
) -> FunctionRunner:
    """Return a runner of functions in functions.py. args: that they see, beside the usual ones."""
    plan = run.plan
    rollout = RolloutSettings(
        rollout_batch_size=plan.groups,
        n_samples_per_prompt=plan.samples,
        num_rollout=plan.steps,
        rollout_max_response_len=24,
    )
    usual = ArgsView.of_run(TrainSettings(rollout=rollout)).as_dict()
    context = RunnerContext(plan, Letters(), ArgsView({**usual, "rm_type": "f1", **args}), unpack, inline, grades)
    worker = Participant(log or run.log, "rollout-function")
    functions = [
        RolloutFunction(flag, name if ":" in name else f"{FUNCTIONS}:{name}") if name else None
        for flag, name in ((ROLLOUT, train), (EVALUATION, evaluate))
    ]
    return FunctionRunner(worker, context, *functions, keeper)


def check_log(run: Simulation) -> None:
    """Check that audit and replay report nothing."""
    check_records(
        [Recorded(record.position, record.subject, decode(record.data), record.data) for record in run.log.records],
        run.plan,
    )


def check_records(records: Sequence[Recorded], plan: Plan) -> None:
    """Check the same of a log's records."""
    check_seconds(records)
    auditor = Audit("sim", fetch=unpack, files=False)
    for recorded in records:
        auditor.apply(recorded)
    assert auditor.finish().findings == []
    report = replayed(records, policy_for(plan))
    assert report.differences == []
    assert report.decisions["batch.sealed"] == plan.steps
