"""A cycle that looks only at groups that changed decides what one that looks at every sample does, at every event."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.arrays import pack_tokens
from schemas.codec import decode
from slime_events.core.state.apply import apply
from slime_events.core.state.group import GroupPhase, GroupState, SampleState
from slime_events.core.state.run import RunPhase, RunState
from slime_events.loop.conductor.decide import decide
from slime_events.loop.conductor.seal import seal
from storage.log import Recorded
from tests import made
from tests.conductor.driver import Driver, dropping, make_plan
from tests.conductor.plain_scan import PlainScan, gist

SEEDS = st.integers(0, 2**32)


@settings(max_examples=25)
@given(
    SEEDS,
    st.sampled_from([0, 1, 2]),
    st.booleans(),
    st.sampled_from([None, None, 2, 5]),
    st.sampled_from([(3, 2), (1, 1), (4, 3)]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 0.3]),
)
def test_equal_decisions(
    seed: int, staleness: int, in_order: bool, draw: int | None, size: tuple[int, int], partial: bool, at_once: bool,
    older: float,
) -> None:  # fmt: skip
    """Including engines that fail or use weights that are too old, rewards that are missing, and evaluations."""
    groups, samples = size
    plan = make_plan(
        steps=4, groups=groups, samples=samples, draw=draw, max_staleness=staleness, in_prompt_order=in_order,
        partial_rollout=partial, mask_offpolicy=partial, verdicts_at_once=at_once, eval_every=2,
        eval_names=("held", "more"), publish_every=1 + (seed % 2 if staleness else 0),
    )  # fmt: skip
    judge = dropping(0.3)
    again = RunState(run="drive")  # its index is as old as the state; the driver's own is read in between
    assert not again.index.requested

    def check(driver: Driver) -> None:
        for recorded in driver.log[again.events :]:
            envelope = decode(recorded.data)
            apply(again, Recorded(recorded.position, envelope.subject, envelope, recorded.data))
        plain = PlainScan(driver.state, plan, judge).decisions()
        for state in (driver.state, again):
            events = decide(state, plan, judge, lambda raw, _: list(raw))
            assert gist(events) == plain

    driver = Driver(plan, judge)
    driver.play(random.Random(seed), engine_fails=0.1, invalid=0.03, ungraded=0.03, older=older, check=check)
    assert driver.batches


OLDEST = st.lists(st.integers(4, 6), max_size=8)


@settings(max_examples=300)
@given(OLDEST, OLDEST, OLDEST, st.booleans(), st.integers(1, 4), st.integers(5, 6))
def test_equal_batches(
    accepted: list[int], fresh: list[int], undecided: list[int], in_order: bool, groups: int, step: int
) -> None:
    """Groups have any age, and were accepted before, are accepted now, or are still being generated."""
    plan = make_plan(steps=9, groups=groups, max_staleness=2, in_prompt_order=in_order)
    state = RunState(run="r", phase=RunPhase.RUNNING, version=step, published=step, next_step=step)
    for place, oldest in enumerate([*accepted, *fresh, *undecided]):
        name = f"g{place:02d}"
        sample = SampleState(sample=f"{name}-s0", oldest=oldest, newest=oldest, reward=1.0)
        group = GroupState(group=name, prompt=pack_tokens([1]), order=place, phase=GroupPhase.REQUESTED)
        group.samples = {sample.sample: sample}
        state.groups[name] = group
    names = list(state.groups)
    state.accepted = names[: len(accepted)]
    for name in state.accepted:
        state.groups[name].phase = GroupPhase.ACCEPTED
    now = names[len(accepted) : len(accepted) + len(fresh)]
    batches = seal(state, plan, [made.accepted(name) for name in now], lambda raw, _: list(raw))
    assert gist(batches) == PlainScan(state, plan, dropping(0)).sealed([("accepted", name) for name in now])
