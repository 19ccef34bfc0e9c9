"""Test the cycles of the conductor: the turns of a step that follow each other without a pause."""

from __future__ import annotations

from schemas.batches import BatchSealed
from schemas.groups import GroupAccepted, GroupRejected
from schemas.prompts import PromptSubmitted
from schemas.rollouts import FailureKind, RolloutRequested
from tests.conductor.driver import Driver, make_plan


def test_without_a_filter_a_batch_and_its_acceptances_are_said_together() -> None:
    driver = Driver(make_plan(groups=3, samples=2, steps=2, verdicts_at_once=False))
    first, second, third = driver.events(PromptSubmitted)
    for prompt in (first, second):
        driver.finish_group(prompt.group)
        driver.settle()
        assert not driver.events(GroupAccepted)
    driver.finish_group(third.group)
    driver.settle()
    events = [recorded.envelope.event for recorded in driver.log]
    sealed = next(i for i, event in enumerate(events) if isinstance(event, BatchSealed))
    assert [type(event) for event in events[sealed - 3 : sealed]] == [GroupAccepted] * 3


def test_without_a_filter_a_broken_group_still_makes_room_at_once() -> None:
    driver = Driver(make_plan(groups=2, samples=1, steps=2, verdicts_at_once=False))
    (request, *_) = driver.events(RolloutRequested)
    driver.fail(request.sample, FailureKind.INVALID)
    driver.settle()
    assert [event.group for event in driver.events(GroupRejected)] == [request.group]
    assert len(driver.events(RolloutRequested)) == 3


def test_without_a_filter_a_broken_group_fills_no_batch() -> None:
    driver = Driver(make_plan(groups=2, samples=1, steps=2, verdicts_at_once=False))
    driver.fail("g0000-s0", FailureKind.INVALID)
    driver.finish_group("g0001")
    driver.settle()
    assert [event.group for event in driver.events(GroupRejected)] == ["g0000"]
    assert not driver.events(GroupAccepted)
    driver.finish_group("g0002")
    driver.settle()
    assert [event.group for event in driver.events(GroupAccepted)] == ["g0001", "g0002"]


def test_the_next_prompts_are_there_before_the_commit_and_the_requests_follow_it() -> None:
    driver = Driver(make_plan(groups=2, samples=1, steps=2))
    for prompt in driver.events(PromptSubmitted):
        driver.finish_group(prompt.group)
    driver.settle()
    assert len(driver.events(PromptSubmitted)) == 4
    assert len(driver.events(RolloutRequested)) == 2
    driver.commit()
    driver.settle()
    assert [request.min_version for request in driver.events(RolloutRequested)] == [0, 0, 1, 1]
    for prompt in driver.events(PromptSubmitted)[2:]:
        driver.finish_group(prompt.group)
    driver.settle()
    assert len(driver.events(PromptSubmitted)) == 4, "the run needs no more"
