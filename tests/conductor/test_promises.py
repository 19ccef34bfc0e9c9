"""The loop's promises, over random orders of everything that the conductor does not decide."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.groups import GroupRejected, RejectionCause
from tests.conductor.driver import Driver, dropping, make_plan
from tests.conductor.promises import check_batches, none_is_stale, nothing_is_lost, rests_end_in_time, within_room

SEEDS = st.integers(0, 2**32)
STALENESS = st.sampled_from([0, 1, 2, 3])


@settings(max_examples=150)
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


@settings(max_examples=100)
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


@settings(max_examples=100)
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


@settings(max_examples=40)
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
