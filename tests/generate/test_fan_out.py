"""A generate function that makes several samples of one rollout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from schemas.arrays import unpack
from schemas.batches import BatchSealed
from schemas.evals import EvalCompleted
from schemas.groups import GroupAccepted
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted
from schemas.steps import StepCommitted
from schemas.turns import TurnRecorded
from slime_events.core.state.group import GroupState
from slime_events.core.tokens.trajectory import Trajectories
from slime_events.loop.training.pending_batches import build_batch
from tests.generate.scene import a_run, check_log, events
from tests.simulation.crash import Crash, Crashed, Fate, Half, Scope
from tests.simulation.roles import keep_all
from tests.simulation.simulation import make_plan

PLAN = make_plan(steps=1, groups=1, samples=2)
SAMPLES = ("s0", "s0-1", "s0-2", "s1", "s1-1", "s1-2")


async def fan_out(folder: Path, fate: Fate | None = None, **scene) -> Crashed:
    run = a_run(folder, "fan_out", PLAN, fate, **scene)
    await run.run()
    check_log(run)
    return run


def ids(samples: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sample.removeprefix("train-0-000000-") for sample in samples)


async def test_every_sample_is_recorded_graded_and_trained(tmp_path: Path) -> None:
    run = await fan_out(tmp_path)
    done = events(run, RolloutCompleted)
    assert {event.rollout for event in done} == {"", "train-0-000000-s0", "train-0-000000-s1"}
    assert {event.metadata["role"] for event in done if event.sample.endswith("-2")} == {"judge"}
    assert ids(events(run, GroupAccepted)[0].samples) == SAMPLES, "in the order of their rollouts, however they end"
    (sealed,) = events(run, BatchSealed)
    assert ids(sealed.samples) == SAMPLES
    assert len(events(run, RewardAssigned)) == len(SAMPLES)
    assert events(run, StepCommitted)[0].samples == len(SAMPLES)
    assert len(events(run, TurnRecorded)) == 6


async def test_samples_of_one_rollout_weigh_as_one(tmp_path: Path) -> None:
    run = await fan_out(tmp_path)
    trajectories = Trajectories(unpack)
    for recorded in run.log.records:
        trajectories.apply(recorded.envelope.event, recorded.position)
    batch = build_batch(events(run, BatchSealed)[0], trajectories.by_sample, unpack, temperature=1.0)
    assert [ids((sample.rollout,)) for sample in batch.samples] == [("s0",)] * 3 + [("s1",)] * 3
    solver, other, judge = batch.samples[:3]
    assert solver.tokens[: -solver.response_length].tolist() == [ord(letter) for letter in "prompt 0"]
    assert "".join(map(chr, judge.tokens[: -judge.response_length])).startswith("which?")
    assert solver.tokens.tolist() != other.tokens.tolist(), "the same question twice has two answers"
    for sample in batch.samples:
        assert sample.loss_mask.tolist() == [1] * sample.response_length
        assert (sample.rollout_log_probs < 0).all()


@pytest.mark.parametrize("half", Half)
async def test_engines_that_die_change_nothing(tmp_path: Path, half: Half) -> None:
    untouched = await fan_out(tmp_path / "whole")
    for at in range(2, 7):
        fate = Fate([Crash(at, half, scope=Scope.ROLE, role="engine0")])
        run = await fan_out(tmp_path / str(at), fate)
        assert run.fate.exhausted
        assert events(run, StepCommitted)[0].weights_digest == events(untouched, StepCommitted)[0].weights_digest
        assert len(events(run, TurnRecorded)) == 6


async def test_a_filter_is_shown_rollouts(tmp_path: Path) -> None:
    shown = []

    def judge(group: GroupState):
        decision = keep_all(group)
        shown.append(decision.figures.count)
        return decision

    await fan_out(tmp_path, judge=judge)
    assert shown == [2], "one member for each rollout, as in slime"


async def test_an_evaluation_beside(tmp_path: Path) -> None:
    plan = make_plan(steps=1, groups=1, samples=2, eval_every=1, eval_names=("held",), eval_samples=1)
    run = a_run(tmp_path, "fan_out", plan, evaluations={"held": ["one", "two"]})
    await run.run()
    assert [(event.version, event.samples) for event in events(run, EvalCompleted)] == [(0, 2), (1, 2)]
    np.testing.assert_equal(len(events(run, StepCommitted)), 1)


async def test_a_grader_of_whole_groups_waits_for_all(tmp_path: Path) -> None:
    run = await fan_out(tmp_path, whole_groups=True)
    assert len(events(run, RewardAssigned)) == len(SAMPLES)
    last = max(r.position for r in run.log.records if isinstance(r.envelope.event, RolloutCompleted))
    assert all(r.position > last for r in run.log.records if isinstance(r.envelope.event, RewardAssigned))
