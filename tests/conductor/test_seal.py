"""A batch: when it is sealed, of which groups, and what it says of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from schemas.arrays import pack_tokens
from schemas.batches import BatchSealed
from schemas.groups import GroupAccepted, GroupRejected
from slime_events.core.state.group import GroupPhase, GroupState, SamplePhase, SampleState
from slime_events.core.state.run import RunState
from slime_events.loop.conductor.plan import Plan
from slime_events.loop.conductor.seal import batch_digest, seal
from tests import made
from tests.conductor.driver import make_plan
from tests.conductor.test_decisions import state_of

LATE = SamplePhase.RUNNING


def halves(rewards: Sequence[float], sizes: Sequence[int]) -> list[float]:
    """A normalisation that shows what it was given: the half of each reward, and the size of its group."""
    each = [size for size in sizes for _ in range(size)]
    return [reward / 2 + 10 * size for reward, size in zip(rewards, each, strict=True)]


def state_with(*groups: tuple[str, int, SamplePhase], version: int = 3, next_step: int = 3) -> RunState:
    """Groups (name, oldest version, phase of their samples) in the order that they were asked for; those that are
    graded are accepted.
    """
    state = state_of(version, next_step=next_step)
    for order, (name, oldest, phase) in enumerate(groups):
        samples = {}
        for index in range(order % 2 + 1):
            sample = SampleState(
                sample=f"{name}-s{index}", phase=phase, oldest=oldest, digest=f"d{index}", reward=order + index
            )
            samples[sample.sample] = sample
        accepted = phase is SamplePhase.GRADED
        state.groups[name] = GroupState(
            group=name,
            prompt=pack_tokens([1]),
            order=order,
            samples=samples,
            phase=GroupPhase.ACCEPTED if accepted else GroupPhase.REQUESTED,
        )
        state.accepted += [name] if accepted else []
    return state


def sealed(state: RunState, plan: Plan, decided: Sequence[GroupAccepted | GroupRejected] = ()) -> BatchSealed | None:
    batches = seal(state, plan, decided, halves)
    assert len(batches) <= 1
    return batches[0] if batches else None


DONE = SamplePhase.GRADED


def test_what_a_batch_says() -> None:
    state = state_with(("a", 3, DONE), ("b", 2, DONE), ("c", 3, DONE))
    batch = sealed(state, make_plan(steps=9, groups=2, max_staleness=1))
    samples, rewards, raw = ("a-s0", "b-s0", "b-s1"), (10.0, 20.5, 21.0), (0.0, 1.0, 2.0)
    digest = batch_digest(3, list(zip(samples, ("d0", "d0", "d1"), rewards, strict=True)))
    assert batch == BatchSealed(
        step=3, groups=("a", "b"), samples=samples, rewards=rewards, raw_rewards=raw, digest=digest, oldest_version=2
    )


@pytest.mark.parametrize(
    ("next_step", "steps", "is_sealed"), [(3, 9, True), (4, 9, True), (5, 9, False), (4, 5, True), (4, 4, False)]
)
def test_neither_ahead_of_the_bound_nor_beyond_the_end(next_step: int, steps: int, is_sealed: bool) -> None:
    state = state_with(("a", 3, DONE), next_step=next_step)
    assert (sealed(state, make_plan(steps=steps, groups=1, max_staleness=1)) is not None) is is_sealed


@pytest.mark.parametrize(("in_order", "groups"), [(True, ("a", "b")), (False, ("b", "c"))])
def test_out_of_order_the_oldest_go_first(in_order: bool, groups: tuple[str, ...]) -> None:
    state = state_with(("a", 3, DONE), ("b", 2, DONE), ("c", 2, DONE))
    batch = sealed(state, make_plan(steps=9, groups=2, max_staleness=1, in_prompt_order=in_order))
    assert batch is not None
    assert batch.groups == groups


ACCEPTED = made.accepted("b")
REJECTED = made.rejected("b")


@pytest.mark.parametrize(
    ("decided", "groups"), [((), None), ((ACCEPTED,), ("a", "b")), ((REJECTED,), None)], ids=["none", "kept", "dropped"]
)
def test_what_was_accepted_in_this_turn_fills_a_batch(
    decided: Sequence[GroupAccepted | GroupRejected], groups: tuple[str, ...] | None
) -> None:
    state = state_with(("a", 3, DONE), ("b", 3, SamplePhase.COMPLETED))
    batch = sealed(state, make_plan(steps=9, groups=2), decided)
    assert (batch.groups if batch else None) == groups


@pytest.mark.parametrize("dropped", [False, True])
def test_a_group_that_would_be_too_late_holds_the_batch_back(dropped: bool) -> None:
    """Unless it was decided in this very turn."""
    state = state_with(("a", 3, DONE), ("b", 3, LATE))
    batch = sealed(state, make_plan(steps=9, groups=1), (REJECTED,) if dropped else ())
    assert (batch is not None) is dropped


@pytest.mark.parametrize(("oldest", "is_sealed"), [(3, False), (4, True)])
def test_surplus_has_to_be_in_time_beside_the_late(oldest: int, is_sealed: bool) -> None:
    """Step 4 takes one of `b`, which is accepted, and `c`, which is late; step 5 the other."""
    state = state_with(("a", 3, DONE), ("b", 3, DONE), ("c", oldest, LATE))
    batch = sealed(state, make_plan(steps=9, groups=1, max_staleness=1, in_prompt_order=False))
    assert (batch is not None) is is_sealed


@pytest.mark.parametrize(
    ("partial", "phase", "suspends"),
    [
        (True, SamplePhase.RUNNING, True), (True, SamplePhase.REQUESTED, True), (True, SamplePhase.SUSPENDED, False),
        (True, SamplePhase.COMPLETED, False), (False, SamplePhase.RUNNING, False),
    ],
)  # fmt: skip
def test_a_batch_suspends_what_is_under_way(partial: bool, phase: SamplePhase, suspends: bool) -> None:
    """Suspend if no further batch may be sealed before the commit."""
    state = state_with(("a", 3, DONE), ("b", 4, phase))
    plan = make_plan(steps=9, groups=1, partial_rollout=partial)
    assert [batch.suspends for batch in seal(state, plan, (), halves)] == [suspends]
    ahead = make_plan(steps=9, groups=1, max_staleness=1, partial_rollout=partial)
    assert [batch.suspends for batch in seal(state, ahead, (), halves)] == [False]
