"""Test what rests at a step boundary, until when, and the effect of a commit that is half read."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from schemas.groups import GroupRejected, RejectionCause
from schemas.rollouts import RolloutRequested
from schemas.steps import StepCommitted
from slime_events.core.state.apply import apply
from slime_events.core.state.run import RunPhase, RunState
from slime_events.loop.conductor.decide import decide, prompts_to_draw
from slime_events.loop.conductor.plan import at_boundary, is_suspended, may_decide
from tests.conductor.driver import Driver, keep_all, make_plan


def resting_driver() -> Driver:
    """Step 0 is sealed with g0002's two rollouts under way, one of them with a token of version 0."""
    driver = Driver(make_plan(groups=2, draw=3, max_attempts=1, in_prompt_order=False, partial_rollout=True))
    driver.begin("g0002-s0")
    for group in ("g0000", "g0001"):
        driver.finish_group(group)
    driver.settle()
    return driver


def test_unfinished_rollouts_rest_at_the_boundary() -> None:
    driver = resting_driver()
    assert driver.batches[0].suspends
    assert all(map(driver.must_rest, ("g0002-s0", "g0002-s1")))
    driver.rest("g0002-s0")
    driver.complete("g0002-s1")  # it ended before its engine knew
    driver.settle()
    assert not driver.requests, "nothing is asked for while the trainer works"
    driver.commit()
    driver.settle()
    again = driver.requests["g0002-s0"]
    assert (again.attempt, again.min_version, again.mask_older) == (1, 1, False)
    assert "g0002-s1" not in driver.requests, "what has ended is left alone"
    assert not driver.must_rest("g0002-s0")


def test_a_rest_is_no_failed_attempt() -> None:
    driver = resting_driver()
    driver.rest("g0002-s0")
    driver.rest("g0002-s1")
    driver.commit()
    driver.settle()
    driver.fail("g0002-s0")
    driver.complete("g0002-s1")
    driver.settle()
    assert [event.cause for event in driver.events(GroupRejected)] == [RejectionCause.ROLLOUT_FAILED]
    assert driver.state.counts.suspensions == 2


def test_a_rest_that_is_said_late_ends_at_once() -> None:
    driver = resting_driver()
    driver.commit()
    driver.settle()
    driver.rest("g0002-s0")
    driver.settle()
    assert driver.requests["g0002-s0"].attempt == 1


def test_a_turn_that_seals_asks_for_nothing_that_rests() -> None:
    """The batch of that very turn is the boundary that it rests at."""
    driver = Driver(make_plan(groups=2, draw=9, in_prompt_order=False, partial_rollout=True))
    for groups in (("g0000", "g0001"), ("g0002", "g0003")):
        for group in groups:
            driver.finish_group(group)
        if driver.batches:
            driver.rest("g0004-s0")
        driver.settle()
        if len(driver.batches) == 1:
            driver.commit()
            driver.settle()
    assert [batch.groups for batch in driver.batches] == [("g0000", "g0001"), ("g0002", "g0003")]
    assert "g0004-s0" not in driver.requests
    driver.commit()
    driver.settle()
    assert driver.requests["g0004-s0"].min_version == 2


def test_between_the_halves_of_a_commit_nothing_is_decided() -> None:
    """step.committed and weights.published are one append, and a reader may still get the first of them alone."""
    driver = Driver(make_plan(groups=1, samples=1))
    driver.finish_group("g0000")
    driver.settle()
    assert driver.state.waiting == ["g0001"], "drawn while the trainer works"
    position = len(driver.log)
    driver.commit()
    state = RunState(run="drive")
    for recorded in driver.log[: position + 1]:
        apply(state, recorded)
    assert isinstance(driver.log[position].envelope.event, StepCommitted)
    assert decide(state, driver.plan, keep_all, as_they_are) == []
    assert prompts_to_draw(state, driver.plan) == 0
    apply(state, driver.log[position + 1])
    (request,) = decide(state, driver.plan, keep_all, as_they_are)
    assert isinstance(request, RolloutRequested)
    assert (request.group, request.min_version) == ("g0001", 1)


@pytest.mark.parametrize(
    ("version", "published", "decides"),
    [
        (1, 0, True),
        (2, 0, False),
        (2, 2, True),
        (3, 2, True),
        (4, 2, False),
        (5, 4, False),
        (5, 5, True),
        (0, -1, False),
        (-1, -1, False),
    ],
)
def test_only_a_commit_that_publishes_is_waited_for(version: int, published: int, decides: bool) -> None:
    """Every second one of five does, and the last."""
    plan = make_plan(steps=5, publish_every=2, max_staleness=1)
    state = RunState(run="drive", phase=RunPhase.RUNNING, version=version, published=published)
    assert may_decide(state, plan) is decides
    for phase in set(RunPhase) - {RunPhase.RUNNING}:
        state.phase = phase
        assert not may_decide(state, plan)


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize(("next_step", "waits"), [(2, False), (3, False), (4, True)])
def test_a_step_that_waits_for_a_commit(partial: bool, next_step: int, waits: bool) -> None:
    """At version 2, and with rollouts of one version before."""
    plan = make_plan(steps=9, max_staleness=1, partial_rollout=partial)
    state = RunState(run="drive", phase=RunPhase.RUNNING, version=2, published=2)
    assert at_boundary(next_step, state, plan) is waits
    assert is_suspended(next_step, state, plan) is (waits and partial)


def as_they_are(rewards: Sequence[float], sizes: Sequence[int]) -> list[float]:
    return list(rewards)
