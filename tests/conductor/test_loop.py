"""Single decisions of the loop: who goes first, who is tried again, who is rejected."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from schemas.groups import GroupAccepted, GroupRejected, RejectionCause
from schemas.prompts import Source
from schemas.rollouts import RolloutRequested
from slime_events.core.state.group import GroupState
from slime_events.loop.conductor.decide import is_broken, is_complete
from slime_events.plugins.filters.base_types import DynamicFilterOutput
from slime_events.plugins.filters.decide import FilterDecision, run_filter
from slime_events.plugins.sample_view import group_samples
from tests import made
from tests.conductor.driver import Driver, dropping, make_plan
from tests.conductor.promises import check_batches, within_room


def test_a_group_that_is_late_holds_the_batch_back() -> None:
    driver = Driver(make_plan(groups=1, samples=1, max_staleness=2, in_prompt_order=False))
    for sample in list(driver.requests):
        driver.begin(sample)
    for _ in range(2):  # two younger groups pass the two older ones
        driver.finish_group(sorted(request.group for request in driver.requests.values())[-1])
        driver.settle()
        if driver.state.sealed:
            driver.commit()
            driver.settle()
    assert len(driver.batches) == 1, "a second one would leave g0000 and g0001 one step in time for both"
    for group in ("g0000", "g0001"):
        driver.finish_group(group)
        driver.settle()
    assert [batch.groups for batch in driver.batches[:3]] == [("g0002",), ("g0000",), ("g0001",)]


@pytest.mark.parametrize(("in_order", "first"), [(True, []), (False, ["g0001"])])
def test_in_prompt_order_a_group_waits_for_those_before_it(in_order: bool, first: list[str]) -> None:
    driver = Driver(make_plan(groups=3, samples=1, in_prompt_order=in_order))
    driver.finish_group("g0001")
    driver.settle()
    assert [event.group for event in driver.events(GroupAccepted)] == first
    driver.finish_group("g0000")
    driver.settle()
    groups = [event.group for event in driver.events(GroupAccepted)]
    assert groups == (["g0000", "g0001"] if in_order else ["g0001", "g0000"])


def test_surplus_goes_into_the_next_step() -> None:
    driver = Driver(make_plan(groups=2, draw=4))
    assert len(driver.requests) == 8
    for group in ("g0000", "g0001", "g0002", "g0003"):
        driver.finish_group(group)
    driver.settle()
    assert driver.batches[0].groups == ("g0000", "g0001")
    assert driver.state.accepted == ["g0002", "g0003"]
    driver.commit()
    driver.settle()
    assert driver.batches[1].groups == ("g0002", "g0003")


def test_retries_then_rejection() -> None:
    driver = Driver(make_plan(max_attempts=3))
    for attempt in range(3):
        assert driver.requests["g0000-s0"].attempt == attempt
        driver.fail("g0000-s0")
        driver.settle()
    assert "g0000-s0" not in driver.requests
    driver.complete("g0000-s1")
    driver.settle()
    (rejected,) = driver.events(GroupRejected)
    assert (rejected.group, rejected.cause) == ("g0000", RejectionCause.ROLLOUT_FAILED)
    assert "g0000-s0: broke" in rejected.reason
    assert "g0003-s0" in driver.requests, "another prompt takes its place"
    seeds = {r.seed for r in driver.events(RolloutRequested) if r.sample == "g0000-s0"}
    assert len(seeds) == 1, "an attempt keeps the seed of the first"


def test_a_group_with_a_failed_rollout_needs_no_more_rewards() -> None:
    """A grader of whole groups never sees it, so nobody would ever grade the others."""
    driver = Driver(make_plan(max_attempts=1))
    driver.fail("g0000-s0")
    driver.settle()
    assert not driver.events(GroupRejected), "the other sample is still being made"
    driver.complete("g0000-s1")
    driver.settle()
    assert [event.group for event in driver.events(GroupRejected)] == ["g0000"]


def test_a_sample_without_reward_costs_its_group_only() -> None:
    driver = Driver(make_plan())
    driver.finish_group("g0001")
    driver.finish_group("g0002")
    driver.complete("g0000-s0")
    driver.complete("g0000-s1")
    driver.grade("g0000-s0")
    driver.grade("g0000-s1", None)
    driver.settle()
    (rejected,) = driver.events(GroupRejected)
    assert rejected.cause is RejectionCause.REWARD_FAILED
    driver.finish_group("g0003")
    driver.settle()
    assert driver.batches[0].groups == ("g0001", "g0002", "g0003")


def test_a_filter_that_raises_breaks_the_run_with_a_reason() -> None:

    def broken(args: object, samples: object) -> bool:
        raise KeyError("colour")

    driver = Driver(make_plan(), lambda group: run_filter(broken, None, group_samples(group)))
    driver.play(random.Random(1))
    rejected = driver.events(GroupRejected)
    assert len(rejected) >= driver.plan.broken_limit
    assert all(event.cause is RejectionCause.FILTER_RAISED and "colour" in event.reason for event in rejected)
    reason = is_broken(driver.state, driver.plan)
    assert reason is not None
    assert "filter_raised" in reason
    assert not driver.batches


def test_filter_drops_do_not_break_a_run() -> None:
    driver = Driver(make_plan(steps=1), dropping(0.95))
    driver.play(random.Random(1))
    check_batches(driver)
    assert Counter(event.cause for event in driver.events(GroupRejected))[RejectionCause.FILTER] > 16


def test_dropping_may_be_waived_only_by_what_the_step_still_lacks() -> None:
    """slime's fallback counts the groups that the step could still get, not those of a batch that is sealed already."""

    def judge(group: GroupState) -> FilterDecision:
        output = DynamicFilterOutput(keep=group.group < "g0002", reason="dull", keep_when_insufficient=True)
        return run_filter(lambda *_: output, None, group_samples(group))

    driver = Driver(make_plan(groups=2, max_staleness=1), judge)
    for group in ("g0000", "g0001", "g0002"):
        driver.finish_group(group)
        driver.settle()
    assert driver.batches[0].groups == ("g0000", "g0001")
    assert not driver.events(GroupRejected), (
        "2 are left for the next step, which takes 2: a dull one is better than none"
    )


def test_what_is_dropped_in_a_turn_no_longer_counts_for_the_next_group_of_it() -> None:
    """Three are left for a step of two. Two dull ones end in one turn: without the first, the second is needed."""

    def judge(group: GroupState) -> FilterDecision:
        output = DynamicFilterOutput(keep=False, reason="dull", keep_when_insufficient=True)
        return run_filter(lambda *_: output, None, group_samples(group))

    driver = Driver(make_plan(groups=2, samples=1, draw=3), judge)
    for group in ("g0000", "g0001"):
        driver.finish_group(group)
    driver.settle()
    assert [event.group for event in driver.events(GroupRejected)] == ["g0000"]
    assert driver.state.accepted == ["g0001"]


@pytest.mark.parametrize("staleness", [0, 2])
def test_outside_prompts_go_first_and_wait_for_room(staleness: int) -> None:
    driver = Driver(make_plan(max_staleness=staleness))
    drawn = driver.drawn
    for key in ("a", "b"):
        driver.say(made.submitted(f"inbox-{key}", source=Source(path="inbox", key=key)))
    driver.settle()
    assert driver.state.waiting == ["inbox-a", "inbox-b"], "there is no room"
    driver.play(random.Random(3), check=within_room)
    assert is_complete(driver.state, driver.plan)
    sealed = [group for batch in driver.batches for group in batch.groups]
    assert {"inbox-a", "inbox-b"} <= set(sealed)
    assert driver.drawn == driver.plan.steps * driver.plan.groups - 2 >= drawn
    check_batches(driver)


def test_nothing_is_said_after_the_end() -> None:
    driver = Driver(make_plan(steps=1))
    driver.play(random.Random(0))
    before = len(driver.log)
    driver.settle()
    assert len(driver.log) == before
