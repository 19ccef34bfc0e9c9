"""Test what is drawn and requested: how many groups, which rollouts again, and by which weights and seeds."""

from __future__ import annotations

import msgspec
import pytest

from schemas.arrays import pack_tokens
from schemas.event import Purpose
from schemas.ids import sample_seed
from schemas.prompts import PromptSubmitted, Source
from schemas.rollouts import FailureKind, Maker, RolloutRequested, Sampling
from slime_events.core.state.group import GroupState, SamplePhase
from slime_events.core.state.run import Counts, SealedState
from slime_events.loop.conductor.decide import with_requests
from slime_events.loop.conductor.draw import groups_to_request, requests_again, requests_missing
from tests import made
from tests.conductor.driver import SAMPLING, Driver, make_plan
from tests.conductor.test_decisions import state_of


@pytest.mark.parametrize(
    ("draw", "open_", "count"),
    [(None, 0, 4), (None, 3, 1), (None, 4, 0), (None, 5, 0), (3, 0, 6), (3, 1, 3), (3, 2, 3), (3, 3, 3), (3, 4, 0)],
)
def test_groups_to_ask_for(draw: int | None, open_: int, count: int) -> None:
    plan = make_plan(steps=9, groups=2, max_staleness=1, draw=draw)
    state = state_of(0, counts=Counts(groups_requested=open_))
    assert groups_to_request(state, plan) == count


@pytest.mark.parametrize(("next_step", "open_", "count"), [(3, 0, 4), (4, 0, 2), (4, 1, 1), (4, 2, 0), (5, 0, 0)])
def test_never_more_than_the_run_still_needs(next_step: int, open_: int, count: int) -> None:
    """Request for five steps of two groups; groups of sealed batches are open, and no longer needed."""
    plan = make_plan(steps=5, groups=2, max_staleness=3)
    sealed = {2: SealedState(groups=("a", "b"), digest="")}
    state = state_of(2, next_step=next_step, counts=Counts(groups_requested=open_ + 2), sealed=sealed)
    assert groups_to_request(state, plan) == count


def test_nothing_is_asked_for_while_rollouts_rest() -> None:
    """The batch of step 0 waits for its commit."""
    state = state_of(0, next_step=1)
    for draw in (None, 2):
        plan = make_plan(steps=5, groups=2, draw=draw, partial_rollout=True)
        assert groups_to_request(state, plan) == 0
        assert groups_to_request(state, msgspec.structs.replace(plan, partial_rollout=False)) == 2


@pytest.mark.parametrize("draw", [None, 3])
@pytest.mark.parametrize("open_", [4, 5])
def test_what_no_step_needs_is_not_drawn(draw: int | None, open_: int) -> None:
    """Draw nothing for the last two of four steps, which have enough groups, although there is room for more."""
    plan = make_plan(steps=4, groups=2, max_staleness=5, draw=draw)
    assert groups_to_request(state_of(2, next_step=2, counts=Counts(groups_requested=open_)), plan) == 0


def test_training_asks_for_published_weights_and_samples_as_training() -> None:
    plan = make_plan(
        groups=1, samples=2, publish_every=2, max_staleness=1, eval_names=("held",), eval_sampling=EVAL_SAMPLING
    )
    state = state_of(3, next_step=3)
    state.published = 2
    _, *requests = with_requests([prompt("a")], state, plan)
    assert len(requests) == 2
    for request in requests:
        assert isinstance(request, RolloutRequested)
        assert (request.min_version, request.sampling, request.purpose) == (2, SAMPLING, Purpose.TRAIN)
        assert (request.seed, request.attempt) == (sample_seed(plan.seed, request.sample), 0)
    assert [request.entity() for request in requests] == ["a-s0", "a-s1"]


def test_what_agents_make_is_marked() -> None:
    state = state_of(1)
    state.published = 0
    for agents in (True, False):
        _, *requests = with_requests([prompt("a")], state, make_plan(groups=1, samples=2, agents=agents))
        maker = Maker.AGENT if agents else Maker.ENGINE
        assert [isinstance(request, RolloutRequested) and request.maker for request in requests] == [maker, maker]


def prompt(group: str, *, seen: int = 0) -> PromptSubmitted:
    return made.submitted(group, source=Source(path="f", seen=seen))


def test_what_is_drawn_is_asked_for_as_far_as_there_is_room() -> None:
    plan, state = make_plan(groups=3, samples=1), state_of(0, waiting=["before"])
    state.groups["before"] = GroupState(group="before", prompt=pack_tokens([1]))
    events = with_requests([prompt("a"), prompt("b"), prompt("c")], state, plan)
    groups = [event.group for event in events if isinstance(event, RolloutRequested)]
    assert groups == ["a", "b"], "one place is for who waits"
    assert with_requests([prompt("a", seen=1)], state, plan) == [prompt("a", seen=1)]


EVAL_SAMPLING = Sampling(max_new_tokens=3, temperature=0.0)


@pytest.mark.parametrize("purpose", [Purpose.TRAIN, Purpose.EVAL])
@pytest.mark.parametrize("rested", [False, True])
def test_what_is_asked_for_again_is_the_same_rollout(purpose: Purpose, rested: bool) -> None:
    evals = {"eval_names": ("held",), "eval_sampling": EVAL_SAMPLING}
    plan = make_plan(groups=1, samples=3, mask_offpolicy=True, partial_rollout=True, **evals)
    driver = Driver(plan)
    group = driver.state.groups["g0000"]
    group.purpose, group.dataset = purpose, "held"
    first = driver.requests["g0000-s2"]
    driver.state.published = 5
    if rested:
        driver.rest("g0000-s2")
    else:
        driver.fail("g0000-s2")
    again = [request for request in requests_again(driver.state, plan, training=True) if request.sample == "g0000-s2"]
    sampling = SAMPLING if purpose is Purpose.TRAIN else EVAL_SAMPLING
    expected = msgspec.structs.replace(
        first, attempt=1, purpose=purpose, sampling=sampling, min_version=5 if rested else 0, mask_older=rested
    )
    if purpose is Purpose.EVAL:  # its group is no row of a data set
        expected = msgspec.structs.replace(expected, place=None)
    assert again == [expected]
    left = requests_again(driver.state, plan, training=False)
    assert left == ([expected] if purpose is Purpose.EVAL else []), "training rests, evaluations do not"


def test_a_verdict_ends_what_is_asked_for_again() -> None:
    driver = Driver(make_plan(groups=1, samples=1, max_attempts=9))
    driver.finish_group("g0000")
    driver.settle()
    driver.state.groups["g0000"].samples["g0000-s0"].phase = SamplePhase.SUSPENDED
    assert requests_again(driver.state, driver.plan, training=True) == []


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_attempts_of_an_engine_that_fails(failures: int) -> None:
    driver = Driver(make_plan(groups=1, samples=1, max_attempts=3))
    for _ in range(failures):
        driver.fail("g0000-s0")
        again = requests_again(driver.state, driver.plan, training=True)
        for request in again:
            driver.say(request)
    assert bool(again) is (failures < 3)
    if again:
        driver.fail("g0000-s0", FailureKind.TOO_LONG)
        assert requests_again(driver.state, driver.plan, training=True) == []


def test_a_new_conductor_asks_for_what_is_missing_and_for_the_same_weights() -> None:
    driver = Driver(make_plan(groups=1, samples=3))
    group = driver.state.groups["g0000"]
    whole = driver.events(RolloutRequested)
    driver.state.published = 4
    assert requests_missing(driver.state, driver.plan) == []
    del group.samples["g0000-s1"]
    assert requests_missing(driver.state, driver.plan) == [whole[1]]


def test_a_seed_is_of_its_run_and_sample() -> None:
    seeds = [sample_seed(seed, sample) for seed in (1, 2) for sample in (f"g{n}-s{n % 7}" for n in range(200))]
    assert len(set(seeds)) == 400
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert (sample_seed(42, "train-0-000000-s0"), sample_seed(42, "train-0-000000-s1")) == SEEDS


SEEDS = (124698815, 875644327)
"""Keep the values: a recorded run is decided the same again."""
