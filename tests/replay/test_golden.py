"""Golden runs are replayed: a change that would have decided differently fails here, and says where."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import slime_events.algorithms.reward_norm
import slime_events.loop.conductor.draw
import slime_events.loop.conductor.plan
import slime_events.loop.conductor.seal
import slime_events.plugins.filters.dynamic_sampling
from schemas.groups import GroupRejected, RejectionCause
from schemas.rollouts import RolloutRequested
from schemas.runs import RunFinished
from slime_events.app.cli.commands.replay import difference_text
from slime_events.model.verify import verify
from storage.memory_log import MemoryLog
from tests.golden.make_decisions import RECIPES
from tests.golden.make_decisions import main as make_golden
from tests.replay.golden import LOGS, golden, recorded_of
from tests.replay.replayed import replayed


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_golden_run_is_decided_the_same_again(path: Path) -> None:
    report = replayed(recorded_of(path), every=False)
    assert report.is_equal, difference_text(report.differences[0])
    assert report.compared > 50


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
async def test_a_golden_run_folds_to_the_state_that_it_ended_with(path: Path) -> None:
    """run.finished says the digest of the state that the version which wrote it had come to."""
    log = MemoryLog("sim")
    log.records = recorded_of(path)
    (end,) = (record.position for record in log.records if isinstance(record.envelope.event, RunFinished))
    verification = await verify(log)
    assert (verification.position, verification.events, verification.steps) == (len(log.records), end - 1, 4)


def test_golden_runs_hold_every_kind_of_decision() -> None:
    events = [recorded.envelope.event for path in LOGS for recorded in recorded_of(path)]
    causes = Counter(event.cause for event in events if isinstance(event, GroupRejected))
    assert {RejectionCause.FILTER, RejectionCause.REWARD_FAILED, RejectionCause.ROLLOUT_FAILED} <= set(causes)
    again = [event for event in events if isinstance(event, RolloutRequested) and event.attempt]
    assert {event.mask_older for event in again} == {True, False}
    kinds = Counter(name for path in LOGS for name in replayed(recorded_of(path)).decisions)
    assert {"batch.sealed", "eval.completed", "group.accepted", "prompt.submitted", "rollout.requested"} <= set(kinds)


def test_a_golden_run_is_not_made_twice() -> None:
    with pytest.raises(FileExistsError):
        make_golden("v3")
    assert {path.stem for path in LOGS} >= {f"v3-{name}" for name in RECIPES}


@pytest.mark.parametrize(
    ("where", "name", "other", "log", "kind", "field"),
    [
        (
            slime_events.loop.conductor.draw,
            "sample_seed",
            lambda seed, sample: 7,
            "synchronous",
            "rollout.requested",
            "seed",
        ),
        (slime_events.algorithms.estimators.estimator, "EPS", 1e-5, "synchronous", "batch.sealed", "rewards"),
        (slime_events.plugins.filters.dynamic_sampling, "MIN_STD", 0.6, "synchronous", "group.accepted", ""),
        (slime_events.loop.conductor.seal, "in_time", lambda *_: False, "resting", "batch.sealed", ""),
        (slime_events.loop.conductor.draw, "RETRYABLE", (), "synchronous", "rollout.requested", ""),
        (slime_events.loop.conductor.plan.Plan, "room", property(lambda plan: plan.groups + 1), "synchronous", "", ""),
    ],
    ids=["seeds", "normalisation", "threshold", "staleness", "retries", "backpressure"],
)
def test_a_change_of_the_code_is_found(
    monkeypatch: pytest.MonkeyPatch, where: Any, name: str, other: Any, log: str, kind: str, field: str
) -> None:
    monkeypatch.setattr(where, name, other)
    (first, *_) = replayed(golden(log), every=False).differences
    assert kind in str(first)
    assert not field or field in first.fields
    assert first.inputs["room"] > 0
