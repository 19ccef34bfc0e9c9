"""Decisions as functions of a state: what is due, what is asked for, what is waited for, and when it is over."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from schemas.arrays import pack_tokens
from schemas.groups import GroupRejected, RejectionCause
from schemas.rollouts import FailureKind
from schemas.runs import Branched
from slime_events.core.state.group import GroupState, SamplePhase, SampleState
from slime_events.core.state.group_index import Age
from slime_events.core.state.run import Counts, RunPhase, RunState, SealedState
from slime_events.loop.conductor.accept import has_ended, verdicts
from slime_events.loop.conductor.decide import Stall, evals_due, is_broken, is_complete, waits_for
from slime_events.loop.conductor.plan import in_time, last_step, last_steps, stale
from slime_events.loop.conductor.seal import batch_digest
from tests import made
from tests.conductor.driver import Driver, keep_all, make_plan


def state_of(version: int, *, first: int | None = None, **fields: Any) -> RunState:
    """A running state with all its weights published. first: of a branch."""
    state = RunState(run="r", phase=RunPhase.RUNNING, version=version, published=version, **fields)
    if first is not None:
        state.branched = Branched(run="p", where="w", position=1, version=first, weights_digest="", optimizer_digest="")
    return state


@pytest.mark.parametrize(
    ("version", "first", "eval_first", "due"),
    [
        (-1, None, True, None), (0, None, True, 0), (0, None, False, None), (1, None, True, 0), (2, None, False, 2),
        (3, None, True, 2), (5, None, True, 5), (5, None, False, 5), (3, 3, True, 3), (3, 3, False, None),
        (4, 3, True, 4), (4, 3, False, 4), (5, 3, True, 5), (1, 1, True, 1), (1, 1, False, None),
    ],
)  # fmt: skip
def test_an_evaluation_is_due(version: int, first: int | None, eval_first: bool, due: int | None) -> None:
    """Every second version of five, the last, and the first where it is asked for."""
    plan = make_plan(steps=5, eval_every=2, eval_first=eval_first, eval_names=("a", "b"))
    state = state_of(version, first=first)
    assert evals_due(state, plan) == ([] if due is None else [("a", due), ("b", due)])
    if due is not None:
        state.evals_begun = {"a": due, "b": due - 1}
        assert evals_due(state, plan) == [("b", due)]
    assert evals_due(state, make_plan(steps=5, eval_names=("a",))) == []


@pytest.mark.parametrize(
    ("version", "first", "saved", "newest", "complete"),
    [
        (4, None, 2, 4, False),
        (5, None, 1, 2, False),
        (5, None, 2, 4, True),
        (5, None, 1, 4, True),  # the first one could not be written
        (5, None, 1, 5, True),  # the second could not, and a newer one was
        (5, 2, 0, 2, False),
        (5, 2, 1, 4, True),
        (5, 3, 1, 4, True),
    ],
)
def test_a_run_is_complete_with_its_checkpoints(
    version: int, first: int | None, saved: int, newest: int, complete: bool
) -> None:
    """One after every second step; those before a branch's beginning are its parent's."""
    plan = make_plan(steps=5, checkpoint_every=2)
    state = state_of(version, first=first, counts=Counts(checkpoints=saved))
    state.batch_starts = dict.fromkeys(range(newest, version), 1)
    assert is_complete(state, plan) is complete
    state.phase = RunPhase.FINISHED
    assert not is_complete(state, plan)


def test_one_broken_group_more_ends_a_run() -> None:
    plan = make_plan()
    assert is_broken(state_of(0, broken_in_a_row=plan.broken_limit - 1), plan) is None
    assert is_broken(state_of(0, broken_in_a_row=plan.broken_limit), plan) is not None


def test_what_is_waited_for_in_turn() -> None:
    driver = Driver(make_plan(steps=1, groups=1, samples=2, checkpoint_every=1, eval_every=9, eval_names=("held",)))
    plan, state = driver.plan, driver.state
    evaluation = [sample for sample in driver.requests if sample.startswith("eval")]
    waits = [waits_for(RunState(run="r"), plan), waits_for(state, plan)]
    driver.say(made.activated(seconds=0.0))
    waits.append(waits_for(state, plan))
    driver.begin("g0000-s0")
    waits.append(waits_for(state, plan))
    for sample in evaluation:
        driver.complete(sample)
        driver.grade(sample)
    driver.complete("g0000-s0")
    waits.append(waits_for(state, plan))
    driver.complete("g0000-s1")
    waits.append(waits_for(state, plan))
    for sample in ("g0000-s0", "g0000-s1"):
        driver.grade(sample)
    waits.append(waits_for(state, plan))
    driver.settle()
    waits.append(waits_for(state, plan))
    driver.plan = make_plan(steps=1, groups=1, samples=2)
    driver.commit()
    waits.append(waits_for(state, plan))
    assert waits == [
        "the trainer to publish version 0",
        "an engine to activate version 0",
        "4 samples to be generated",
        "4 samples to be generated",
        "1 samples to be generated and 1 to be graded",
        "2 samples to be graded",
        "the evaluation held-v0",
        "the trainer to commit step 0",
        "a checkpoint to be saved",
    ]
    assert waits_for(state, make_plan(steps=2)) == "prompts for step 1"
    state.sealed = {3: SealedState(groups=(), digest=""), 2: SealedState(groups=(), digest="")}
    assert waits_for(state, plan) == "the trainer to commit step 2"


def group_of(oldest: int, name: str = "g", version: int = 0) -> GroupState:
    """A group of one sample."""
    sample = SampleState(sample=f"{name}-s0", oldest=oldest, newest=oldest)
    return GroupState(group=name, prompt=pack_tokens([1]), version=version, samples={sample.sample: sample})


@pytest.mark.parametrize(
    ("oldest", "step", "fits"),
    [((3,), 4, True), ((3,), 5, False), ((3, 3), 4, True), ((3, 3, 3), 4, False), ((4, 3, 3), 4, True),
     ((3, 4, 3), 4, True), ((4, 4, 3, 3), 4, True), ((4, 4, 4, 3, 3), 4, False), ((), 9, True)],
)  # fmt: skip
def test_groups_are_in_time(oldest: tuple[int, ...], step: int, fits: bool) -> None:
    """Two a step, each trained by the step after its oldest version at the latest."""
    plan = make_plan(groups=2, max_staleness=1)
    last = Counter(last_step(group_of(version, f"g{place}", version=9), plan) for place, version in enumerate(oldest))
    assert in_time(last, step, plan) is fits
    assert in_time(last_steps(Counter(Age(version, None) for version in oldest), plan), step, plan) is fits
    assert in_time(last_steps(Counter(Age(version - 4, 5) for version in oldest), plan), step, plan) is fits


@pytest.mark.parametrize("in_order", [True, False])
def test_a_group_that_is_too_old_for_its_place(in_order: bool) -> None:
    plan = make_plan(groups=2, max_staleness=1, in_prompt_order=in_order)
    state, young = state_of(3, next_step=4), [group_of(4, "a"), group_of(4, "b")]
    assert stale(group_of(3), young[:1], state, plan) is None, "the last step that may train it"
    second = stale(group_of(3), young, state, plan)
    assert (second is None) is not in_order, "out of order it goes before the younger"
    verdict = stale(group_of(2), young[:1], state, plan)
    assert verdict is not None
    assert verdict.figures == {"oldest_version": 2, "step": 4, "behind": 2, "bound": 1}


@pytest.mark.parametrize(
    ("phases", "ended"),
    [
        ("", False), ("GRADED GRADED", True), ("GRADED UNGRADED", True), ("GRADED COMPLETED", False),
        ("UNGRADED COMPLETED", False), ("FAILED COMPLETED", True), ("FAILED GRADED", True), ("FAILED REQUESTED", False),
        ("FAILED RUNNING", False), ("FAILED SUSPENDED", False), ("FAILED FAILED", True), ("GRADED SUSPENDED", False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("may_retry", [False, True])
def test_a_group_has_ended(phases: str, may_retry: bool, ended: bool) -> None:
    """End a group with the last of its samples, graded or not; a sample that may be retried has not ended."""
    samples = {
        name: SampleState(sample=name, phase=SamplePhase[phase], failed_as=FailureKind.ENGINE, failures=1)
        for name, phase in zip(("g-s0", "g-s1"), phases.split(), strict=False)
    }
    group = GroupState(group="g", prompt=pack_tokens([1]), samples=samples)
    plan = make_plan(max_attempts=2 if may_retry else 1)
    assert has_ended(group, plan) is (ended and not (may_retry and "FAILED" in phases))


def test_a_group_that_is_too_old_is_rejected() -> None:
    driver = Driver(make_plan(groups=1, samples=1))
    driver.finish_group("g0000")
    driver.state.next_step = 1
    (verdict,) = verdicts(driver.state, driver.plan, keep_all)
    assert isinstance(verdict, GroupRejected)
    assert (verdict.cause, verdict.samples, verdict.rewards) == (RejectionCause.STALE, ("g0000-s0",), (1.0,))


def test_a_group_that_is_broken_and_too_old_is_broken() -> None:
    """Its reason is what failed, which somebody can mend."""
    driver = Driver(make_plan(groups=1, samples=1, max_attempts=1))
    driver.fail("g0000-s0")
    driver.state.next_step = 9
    (verdict,) = verdicts(driver.state, driver.plan, keep_all)
    assert isinstance(verdict, GroupRejected)
    assert (verdict.cause, verdict.samples) == (RejectionCause.ROLLOUT_FAILED, ("g0000-s0",))


def test_a_batch_s_digest_is_of_its_step_and_every_line() -> None:
    lines = [("a", "d", 0.5), ("b", "e", 0.25)]
    others = [[("a", "d", 0.5), ("b", "e", 0.5)], [("a", "d", 0.5), ("b", "d", 0.25)], lines[::-1], lines[:1]]
    digests = {batch_digest(step, lines) for step in (0, 1)} | {batch_digest(0, other) for other in others}
    assert len(digests) == 6


def test_a_stall_is_so_much_time_without_progress() -> None:
    stall = Stall(10.0, 4.0, now=100.0)
    looks = [(1, 103.0), (1, 106.0), (1, 150.0), (1, 153.0), (2, 154.0), (2, 157.0), (2, 160.0), (2, 164.0)]
    assert [stall.seconds(moved, now) for moved, now in looks] == [None, None, None, 10.0, None, None, None, 10.0]
