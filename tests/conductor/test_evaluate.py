"""Evaluations share the engines, never hold the loop, and the run waits for them at its end."""

from __future__ import annotations

import random

import pytest

from schemas.evals import EvalCompleted
from schemas.rollouts import FailureKind
from schemas.weights import WeightsPublished
from slime_events.loop.conductor.decide import evals_completed, is_complete, waits_for
from tests.conductor.driver import Driver, make_plan


def plan_of(**changes: object):
    return make_plan(steps=5, eval_every=2, eval_names=("held", "other"), **changes)


def test_version_0_every_nth_and_the_last() -> None:
    driver = Driver(plan_of())
    driver.play(random.Random(1))
    done = driver.events(EvalCompleted)
    assert sorted((event.dataset, event.version) for event in done) == [
        (name, version) for name in ("held", "other") for version in (0, 2, 4, 5)
    ]
    assert all(event.samples == 2 and event.failed == 0 for event in done)
    assert not driver.state.evals


@pytest.mark.parametrize(("exact", "versions"), [(True, [0, 4, 6, 7]), (False, [0, 3, 6, 7])])
def test_a_version_that_is_not_published_is_not_evaluated(exact: bool, versions: list[int]) -> None:
    plan = make_plan(steps=7, eval_every=3, eval_names=("held",), eval_exact=exact, publish_every=2, max_staleness=1)
    driver = Driver(plan)
    driver.play(random.Random(1))
    done = driver.events(EvalCompleted)
    assert sorted(event.version for event in done) == versions
    published = {event.version for event in driver.events(WeightsPublished)}
    assert not exact or {event.version for event in done} <= published


def test_without_the_first() -> None:
    driver = Driver(plan_of(eval_first=False))
    driver.play(random.Random(1))
    assert {event.version for event in driver.events(EvalCompleted)} == {2, 4, 5}


def test_the_loop_is_not_held_and_the_end_waits() -> None:
    driver = Driver(plan_of(checkpoint_every=5))
    evaluation = [sample for sample in driver.requests if sample.startswith("eval-held-v0")]
    while driver.state.version < 5:
        for group in {r.group for r in driver.requests.values() if r.purpose == "train"}:
            driver.finish_group(group)
        driver.settle()
        driver.commit()
        driver.settle()
    assert set(evaluation) <= set(driver.requests), "nobody has looked at version 0's evaluation yet"
    assert not is_complete(driver.state, driver.plan)
    assert waits_for(driver.state, driver.plan).endswith("an engine to activate version 5")
    for sample in list(driver.requests):
        driver.complete(sample)
        driver.grade(sample, 0.5)
    driver.settle()
    assert is_complete(driver.state, driver.plan)
    first = next(event for event in driver.events(EvalCompleted) if event.version == 0)
    assert (first.mean, first.oldest_version, first.newest_version) == (0.5, 5, 5)


def test_the_end_waits_for_an_evaluation_that_is_still_to_be_begun() -> None:
    driver = Driver(plan_of())
    driver.play(random.Random(1))
    assert is_complete(driver.state, driver.plan)
    driver.state.evals_begun["held"] = 4
    assert not is_complete(driver.state, driver.plan)


def test_the_end_waits_for_the_checkpoint() -> None:
    driver = Driver(make_plan(steps=1, checkpoint_every=1))
    state = driver.state
    driver.plan = make_plan(steps=1)
    driver.play(random.Random(0))
    assert is_complete(state, make_plan(steps=1))
    assert not is_complete(state, make_plan(steps=1, checkpoint_every=1))


@pytest.mark.parametrize("how", ["rollout", "reward"])
def test_what_failed_counts_nothing(how: str) -> None:
    driver = Driver(plan_of(max_attempts=1))
    failed, *others = [sample for sample in driver.requests if sample.startswith("eval-held-v0")]
    for sample in others:
        driver.complete(sample)
        driver.grade(sample, 1.0)
    if how == "rollout":
        driver.fail(failed, FailureKind.TOO_LONG)
    else:
        driver.complete(failed)
        driver.grade(failed, None)
    driver.settle()
    (done,) = driver.events(EvalCompleted)
    assert (done.mean, done.samples, done.failed) == (0.5, 2, 1)


def test_what_an_evaluation_says() -> None:
    """Lengths of all samples, failed ones too; versions over all their tokens."""
    driver = Driver(plan_of(max_attempts=1))
    driver.state.published = 4
    for sample, versions in (("eval-held-v0-0-s0", (3, 1)), ("eval-held-v0-1-s0", (2, 5, 3))):
        for version in versions:
            driver.begin(sample, version)
    driver.fail("eval-held-v0-0-s0", FailureKind.TOO_LONG)
    driver.complete("eval-held-v0-1-s0")
    driver.grade("eval-held-v0-1-s0", 1.0)
    (done,) = evals_completed(driver.state, driver.plan)
    assert (done.mean, done.samples, done.failed, done.mean_length) == (0.5, 2, 1, 3.0)
    assert (done.oldest_version, done.newest_version) == (1, 5)


@pytest.mark.parametrize(
    ("first", "second", "rates"),
    [
        ([1.0, 1.0, 1.0], [0.0, 0.0, 0.0], {"pass@1": 0.5, "pass@2": 0.5}),
        ([1.0, 0.0, 0.0], [0.0, 0.0, 0.0], {"pass@1": 1 / 6, "pass@2": 1 / 3}),
        ([1.0, 1.0, 0.0], [1.0, 0.0, 0.0], {"pass@1": 0.5, "pass@2": 5 / 6}),
        ([2.0, 0.999, -1.0], [None, 1.0, None], {"pass@1": 1 / 6, "pass@2": 1 / 3}),
    ],
)
def test_pass_rates_are_unbiased(first: list[float], second: list[float | None], rates: dict[str, float]) -> None:
    """Count two questions with three answers each; a reward of exactly 1 is right, and a failure is wrong."""
    driver = Driver(make_plan(steps=5, eval_every=5, eval_names=("held",), eval_samples=3))
    for question, rewards in enumerate((first, second)):
        for index, reward in enumerate(rewards):
            sample = f"eval-held-v0-{question}-s{index}"
            driver.complete(sample)
            driver.grade(sample, reward)
    (done,) = evals_completed(driver.state, driver.plan)
    assert done.pass_rates == pytest.approx(rates)


def test_one_answer_to_each_question_has_no_pass_rates() -> None:
    driver = Driver(plan_of())
    driver.play(random.Random(1))
    assert {len(event.pass_rates) for event in driver.events(EvalCompleted)} == {0}


def test_an_evaluation_is_complete_with_its_last_sample() -> None:
    driver = Driver(plan_of())
    driver.complete("eval-held-v0-0-s0")
    driver.grade("eval-held-v0-0-s0")
    assert evals_completed(driver.state, driver.plan) == []
