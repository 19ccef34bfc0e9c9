"""Small runs whose figures can be computed by hand."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from schemas.errors import InvalidValue
from slime_events.analysis.what_if.figures import Figures, figures_of
from slime_events.analysis.what_if.measurements import Measurements
from slime_events.analysis.what_if.policy import Policy
from slime_events.analysis.what_if.virtual_run import simulate
from tests.what_if import worlds


def figures(measured: Measurements, **changes: Any) -> Figures:
    """Return the figures of a simulated run."""
    policy = replace(Policy.of(measured.settings), **changes)
    run = simulate(measured, policy, 0).run
    return figures_of(run, policy.rollout_num_engines, measured.graders_of(policy.rm_workers))


def test_a_synchronous_run_generates_and_trains_in_turn() -> None:
    """10 tokens of 0.1 s, then a step of 1 s: 2 s, of which each half is idle."""
    seen = figures(worlds.measurements({0: [worlds.group(10)]}))
    assert seen.step_seconds == pytest.approx(2.0)
    assert seen.engines_idle == pytest.approx(0.5)
    assert seen.trainer_idle == pytest.approx(0.5)
    assert seen.graders_idle is None
    assert (seen.staleness_mean, seen.staleness_max, seen.length_bias) == (0.0, 0, 0.0)
    assert seen.tokens_per_s == pytest.approx(10.0)


def test_with_staleness_generation_and_training_overlap() -> None:
    """Both take 1 s: nobody waits, and each sample is one version behind."""
    seen = figures(worlds.measurements({0: [worlds.group(10)]}), max_staleness=1)
    assert seen.step_seconds == pytest.approx(1.0, rel=0.15)  # the last step has no next batch to wait for
    assert seen.staleness_max == 1
    assert seen.trainer_idle == pytest.approx(0.0, abs=0.01)


def test_the_slower_side_is_the_step() -> None:
    """Training takes 3 s and generation 1 s; with staleness the step is the 3 s."""
    measured = worlds.measurements({0: [worlds.group(10)]}, trainer=worlds.trainer(per_step=3.0))
    assert figures(measured).step_seconds == pytest.approx(4.0)
    assert figures(measured, max_staleness=1).step_seconds == pytest.approx(3.0)


def test_rollouts_share_an_engine() -> None:
    """Two rollouts of 10 tokens at 0.1 s per token and rollout take 2 s together, and 1 s on an engine each."""
    engines = worlds.speed(per_token=0.0, per_running=0.1)
    measured = worlds.measurements({0: [worlds.group(10)]}, engines=engines)
    assert figures(measured).step_seconds == pytest.approx(3.0)
    assert figures(measured, rollout_num_engines=2).step_seconds == pytest.approx(2.0)


def test_a_shorter_rollout_leaves_the_engine_to_the_longer() -> None:
    """10 and 30 tokens: 10 x 0.2 s with two, then 20 x 0.1 s alone: 4 s, and the step of 1 s."""
    engines = worlds.speed(per_token=0.0, per_running=0.1)
    pool = [worlds.group(10), worlds.group(30)] * 8
    measured = worlds.measurements(dict.fromkeys(range(8), pool), engines=engines)
    assert figures(measured).step_seconds == pytest.approx(5.0)


def test_prompts_are_computed_one_after_the_other() -> None:
    """Two prompts of 0.5 s before 10 tokens of 0.1 s, and the step of 1 s."""
    measured = worlds.measurements({0: [worlds.group(10)]}, engines=worlds.speed(per_prompt=0.5))
    assert figures(measured).step_seconds == pytest.approx(3.0)


def test_one_grader_grades_one_sample_at_a_time() -> None:
    """Two gradings of 2 s by one grader follow generation: 1 + 4 + 1 s; by two: 1 + 2 + 1 s."""
    measured = worlds.measurements({0: [worlds.group(10, grading=2.0)]})
    one, two = figures(measured), figures(measured, rm_workers=2)
    assert [one.step_seconds, two.step_seconds] == pytest.approx([6.0, 4.0])
    assert [one.graders_idle, two.graders_idle] == pytest.approx([2 / 6, 0.5])


def test_tools_take_their_own_time() -> None:
    """A call of 5 s after 10 tokens of 0.1 s, and the step of 1 s."""
    measured = worlds.measurements({0: [worlds.group(10, tools=5.0)]})
    assert figures(measured).step_seconds == pytest.approx(7.0)


def test_a_larger_batch_takes_longer_to_train() -> None:
    """A sample has 15 tokens of 0.1 s: 2 of them 3 s, 4 of them 6 s."""
    measured = worlds.measurements({0: [worlds.group(10)]}, trainer=worlds.trainer(per_step=0.0, per_token=0.1))
    assert figures(measured).step_seconds == pytest.approx(1.0 + 3.0)
    assert figures(measured, rollout_batch_size=4).step_seconds == pytest.approx(1.0 + 6.0)


def test_samples_without_an_advantage_take_no_time_to_train() -> None:
    """The rewards of a group are equal: its normalised rewards are 0, and the trainer skips it."""
    of = worlds.settings(n_samples_per_prompt=2)
    costs = worlds.trainer(per_step=1.0, per_token=0.1, moving_only=True)
    same = worlds.measurements({0: [worlds.group(10, 10, rewards=(1, 1))]}, of, trainer=costs)
    differ = worlds.measurements({0: [worlds.group(10, 10, rewards=(0, 1))]}, of, trainer=costs)
    assert figures(same).step_seconds == pytest.approx(2.0)
    assert figures(differ).step_seconds == pytest.approx(1.0 + 1.0 + 4 * 15 * 0.1)


def test_the_first_to_end_are_trained_first_if_the_order_is_that_of_completion() -> None:
    """All groups of four steps are open at once: four of 10 tokens and four of 100.

    Step 1 trains two of 10 of the remaining 10, 10, 100, 100, 100, 100 (mean 70). Steps 2 and 3 have only those of 100.
    """
    pool = [worlds.group(10), worlds.group(100)] * 4
    measured = worlds.measurements({0: pool}, steps=4)
    first = figures(measured, max_staleness=5, accept_order="completion")
    in_order = figures(measured, max_staleness=5, accept_order="prompt")
    assert first.length_bias == pytest.approx((10 / 70 - 1) / 3)
    assert in_order.length_bias == pytest.approx(0.0)


def test_delays_are_part_of_the_step() -> None:
    """Each delay of 0.25 s is waited for once in a synchronous step; a load of weights is a part of its delay."""
    once = ("to_request", "to_begin", "to_seal", "to_commit")
    delays = replace(worlds.NOTHING, **dict.fromkeys(once, 0.25))
    measured = worlds.measurements({0: [worlds.group(10)]}, delays=delays)
    assert figures(measured).step_seconds == pytest.approx(2.0 + 4 * 0.25)
    loads = replace(worlds.NOTHING, to_activate=0.5, loading=0.25)
    measured = worlds.measurements({0: [worlds.group(10)]}, delays=loads)
    assert figures(measured).step_seconds == pytest.approx(2.0 + 0.5)


def test_a_filter_costs_groups() -> None:
    """Of the two groups of a step one is dropped, and the one that is drawn for it is kept: 1 + 1 + 1 s."""
    pool = [worlds.group(10), worlds.group(10, kept=False)] * 4
    of = worlds.settings(dynamic_sampling_filter_path="m:f")
    measured = worlds.measurements(dict.fromkeys(range(8), pool), of)
    assert figures(measured).step_seconds == pytest.approx(3.0)


def test_a_filter_that_drops_everything_is_refused() -> None:
    of = worlds.settings(dynamic_sampling_filter_path="m:f")
    measured = worlds.measurements({0: [worlds.group(10, kept=False)]}, of)
    with pytest.raises(InvalidValue):
        figures(measured)
