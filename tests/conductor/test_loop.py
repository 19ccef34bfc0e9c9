"""The loop's promises, over random orders of everything that the conductor does not decide."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.arrays import pack_tokens
from schemas.batches import BatchSealed
from schemas.groups import GroupAccepted, GroupRejected, RejectionCause
from schemas.prompts import PromptSubmitted, Source
from schemas.rollouts import RolloutFailed, RolloutRequested, RolloutSuspended
from schemas.steps import StepCommitted
from slime_events.conductor.decide import is_broken, is_complete, prompts_to_draw
from slime_events.filters.base_types import DynamicFilterOutput
from slime_events.filters.decide import FilterDecision, run_filter
from slime_events.sample_view import group_samples
from slime_events.state.apply import apply
from slime_events.state.group import GroupPhase, GroupState
from slime_events.state.run import RunState
from tests.conductor.driver import Driver, dropping, make_plan

SEEDS = st.integers(0, 2**32)
STALENESS = st.sampled_from([0, 1, 2, 3])


def within_room(driver: Driver) -> None:
    assert driver.state.open_groups <= driver.plan.room
    states = driver.state.groups.values()
    assert driver.state.open_groups == sum(g.purpose == "train" and g.phase != GroupPhase.SUBMITTED for g in states)


def nothing_is_lost(driver: Driver) -> None:
    """Every sample that was asked for is trained, or its group rejected with a reason, or it is still there."""
    trained = {sample for batch in driver.batches for sample in batch.samples}
    rejected = {event.group: event for event in driver.events(GroupRejected)}
    assert all(event.reason for event in rejected.values())
    open_samples = {s for g in driver.state.groups.values() if g.purpose == "train" for s in g.samples}
    asked = [event for event in driver.events(RolloutRequested) if event.purpose == "train"]
    for event in asked:
        fates = (event.sample in trained, event.group in rejected, event.sample in open_samples - trained)
        assert sum(fates) == 1, (event.sample, fates)
    attempts = Counter(event.sample for event in asked)
    ended = Counter(event.sample for event in driver.events(RolloutFailed) + driver.events(RolloutSuspended))
    for sample, count in attempts.items():
        assert 0 <= count - ended[sample] <= 1, "asked for once, and once more after each failure or rest"


def check_batches(driver: Driver) -> None:
    """Exactly as many batches as steps, full, of accepted groups, each sealed once, none beyond the bound."""
    plan, batches = driver.plan, driver.batches
    assert [batch.step for batch in batches] == list(range(plan.steps))
    sealed = [group for batch in batches for group in batch.groups]
    assert len(set(sealed)) == len(sealed) == plan.steps * plan.groups
    accepted = [event.group for event in driver.events(GroupAccepted)]
    assert set(sealed) <= set(accepted)
    assert len(set(accepted)) == len(accepted)
    for batch in batches:
        assert len(batch.groups) == plan.groups
        assert len(set(batch.samples)) == plan.groups * plan.samples
        assert batch.step - batch.oldest_version <= plan.staleness_bound
    left = set(accepted) - set(sealed)
    assert left == set(driver.state.accepted)
    nothing_is_lost(driver)


def rests_end_in_time(driver: Driver) -> None:
    """A rollout rests only after a batch that suspends, and is asked for again once a batch may be sealed again."""
    resting: dict[str, int] = {}
    rested: set[str] = set()
    next_step = version = boundary = 0
    for recorded in driver.log:
        event = recorded.envelope.event
        match event:
            case BatchSealed():
                next_step = event.step + 1
                boundary = recorded.position if event.suspends else boundary
                assert not event.suspends or next_step > version + driver.plan.max_staleness
            case StepCommitted():
                version = event.version
            case RolloutSuspended():
                resting[event.sample] = event.attempt
                rested.add(event.sample)
            case RolloutRequested() if event.sample in resting:
                assert event.attempt == resting.pop(event.sample) + 1
                assert next_step <= version + driver.plan.max_staleness
                assert event.mask_older is driver.plan.mask_offpolicy
            case RolloutRequested():
                assert not event.mask_older or event.sample in rested
    assert driver.plan.partial_rollout or not (boundary or rested)


def none_is_stale(driver: Driver) -> None:
    """Sealing waits, so that no group falls behind the bound where engines run the weights that they are asked for."""
    assert RejectionCause.STALE not in driver.state.rejections


@settings(max_examples=150, deadline=None)
@given(SEEDS, STALENESS, st.booleans(), st.integers(1, 4), st.sampled_from([0.0, 0.3]), st.booleans(), st.booleans())
def test_room_staleness_and_end(
    seed: int, staleness: int, in_order: bool, groups: int, dropped: float, partial: bool, at_once: bool
) -> None:
    plan = make_plan(
        steps=5,
        groups=groups,
        max_staleness=staleness,
        in_prompt_order=in_order,
        partial_rollout=partial,
        mask_offpolicy=partial,
        verdicts_at_once=at_once,
    )
    driver = Driver(plan, dropping(dropped))
    driver.play(random.Random(seed), engine_fails=0.1, invalid=0.02, ungraded=0.02, check=within_room)
    check_batches(driver)
    none_is_stale(driver)
    rests_end_in_time(driver)
    assert plan.staleness_bound == staleness


@settings(max_examples=100, deadline=None)
@given(SEEDS, STALENESS, st.booleans(), st.integers(1, 9), st.integers(1, 3), st.booleans())
def test_over_sampling_and_rare_publishing_have_their_own_bound(
    seed: int, staleness: int, in_order: bool, draw: int, publish_every: int, partial: bool
) -> None:
    plan = make_plan(
        steps=6,
        draw=draw,
        max_staleness=staleness,
        in_prompt_order=in_order,
        publish_every=publish_every,
        partial_rollout=partial,
    )
    driver = Driver(plan, dropping(0.4))

    def within_draws(driver: Driver) -> None:
        assert driver.state.open_groups < plan.room + draw

    driver.play(random.Random(seed), engine_fails=0.1, check=within_draws)
    check_batches(driver)
    none_is_stale(driver)
    rests_end_in_time(driver)


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.sampled_from([0, 1, 2]), st.booleans(), st.sampled_from([None, 6]))
def test_tokens_of_older_weights_than_asked_for_never_pass_the_bound(
    seed: int, staleness: int, in_order: bool, draw: int | None
) -> None:
    """No engine should give them; the bound holds all the same, and what was refused has its figures."""
    plan = make_plan(steps=6, draw=draw, max_staleness=staleness, in_prompt_order=in_order)
    driver = Driver(plan)
    driver.play(random.Random(seed), older=0.2)
    assert all(batch.step - batch.oldest_version <= plan.staleness_bound for batch in driver.batches)
    stale = [event for event in driver.events(GroupRejected) if event.cause is RejectionCause.STALE]
    assert driver.state.rejections.get(RejectionCause.STALE, 0) == len(stale)
    for event in stale:
        assert event.figures["behind"] == event.figures["step"] - event.figures["oldest_version"] > plan.staleness_bound
    nothing_is_lost(driver)


@settings(max_examples=40, deadline=None)
@given(SEEDS, STALENESS, st.sampled_from([None, 2, 5]), st.booleans())
def test_batches_in_prompt_order_do_not_depend_on_the_order_of_ends(
    seed: int, staleness: int, draw: int | None, partial: bool
) -> None:
    """Neither luck nor length decides what is trained on, nor in which step."""

    def batches(seed: int) -> list[tuple[str, ...]]:
        plan = make_plan(draw=draw, max_staleness=staleness, partial_rollout=partial, max_attempts=99)
        driver = Driver(plan, dropping(0.4))
        driver.play(random.Random(seed), engine_fails=0.1)
        return [batch.samples for batch in driver.batches]

    assert batches(seed) == batches(0)


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


def test_between_the_halves_of_a_commit_nothing_is_decided() -> None:
    """step.committed and weights.published are one append, and a reader may still get the first of them alone."""
    driver = Driver(make_plan(groups=1, samples=1))
    driver.finish_group("g0000")
    driver.settle()
    position = len(driver.log)
    driver.commit()
    state = RunState(run="drive")
    for recorded in driver.log[: position + 1]:
        apply(state, recorded)
    assert isinstance(driver.log[position].envelope.event, StepCommitted)
    assert prompts_to_draw(state, driver.plan) == 0
    apply(state, driver.log[position + 1])
    assert prompts_to_draw(state, driver.plan) + len(state.waiting) > 0


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
    assert len(seeds) == 1, "an attempt goes on with the seed of the first"


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


@pytest.mark.parametrize("staleness", [0, 2])
def test_outside_prompts_go_first_and_wait_for_room(staleness: int) -> None:
    driver = Driver(make_plan(max_staleness=staleness))
    drawn = driver.drawn
    for key in ("a", "b"):
        driver.say(
            PromptSubmitted(
                group=f"inbox-{key}", text="", tokens=pack_tokens([1]), source=Source(path="inbox", key=key)
            )
        )
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
