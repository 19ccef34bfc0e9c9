"""The fold of a log in two parts is that of the whole, and a whole simulated run folds."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from schemas.arrays import unpack
from schemas.batches import BatchSealed
from schemas.evals import EvalCompleted
from schemas.steps import StepCommitted
from slime_events.analysis.metrics.fold import MetricsFold, MetricsRow
from slime_events.core.config.settings import TrainSettings
from storage.log import Recorded
from tests.metrics.rows import EVERYTHING, rows
from tests.replay.golden import LOGS, recorded_of
from tests.simulation.simulation import Simulation, make_plan

SETTINGS = TrainSettings(metrics=EVERYTHING)


@cache
def folded(log: Path) -> tuple[list[Recorded], list[MetricsRow]]:
    records = recorded_of(log)
    return records, rows(records, SETTINGS)


@given(st.sampled_from(LOGS), st.floats(0, 1))
def test_two_halves_give_what_the_whole_gives(log: Path, share: float) -> None:
    records, whole = folded(log)
    cut = round(share * len(records))
    first = MetricsFold(SETTINGS, unpack)
    before = [row for record in records[:cut] if (row := first.apply(record))]
    second = copy.deepcopy(first)  # what it needs is in it, and nowhere else
    for later in records[cut:]:
        first.apply(later)  # and what this one folds later does not affect it
    after = [row for record in records[cut:] if (row := second.apply(record))]
    assert before + after == whole
    assert len(whole) > 2


async def test_a_simulated_run_has_a_row_for_each_batch_step_and_evaluation(tmp_path: Path) -> None:
    plan = make_plan(eval_every=2, eval_names=("held",), eval_samples=2)
    async with Simulation(tmp_path, plan, evaluations={"held": ["one", "two"]}) as sim:
        sim.start_engine()
        await sim.finish()
    rows_ = rows(sim.log.records, SETTINGS)
    sealed, committed = sim.events(BatchSealed), sim.events(StepCommitted)
    assert [row.values["rollout/step"] for row in rows_ if "rollout/rewards" in row.values] == [b.step for b in sealed]
    assert [row.values["train/step"] for row in rows_ if "train/step" in row.values] == [s.step for s in committed]
    evals = [row.values for row in rows_ if "eval/step" in row.values]
    assert [(evaluation["eval/step"], evaluation["eval/held"]) for evaluation in evals] == [
        (event.version, event.mean) for event in sim.events(EvalCompleted)
    ]
    assert all("eval/held-pass@2" in evaluation and "eval/held/response_len/mean" in evaluation for evaluation in evals)


async def test_nothing_of_a_finished_run_is_kept(tmp_path: Path) -> None:
    async with Simulation(tmp_path, make_plan(max_staleness=1)) as sim:
        sim.start_engine()
        await sim.finish()
    fold = MetricsFold(SETTINGS, unpack)
    trained = {group for batch in sim.events(BatchSealed) for group in batch.groups}
    for record in sim.log.records:
        fold.apply(record)
    kept = {
        *fold._requested,
        *fold._completed,
        *(s.rpartition("-s")[0] for s in (*fold._running.by_sample, *fold._generations)),
    }
    assert not kept & trained
