"""Test whose prompts are requested next: shares hold, no turn is lost, and a replay gets the same result."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.doors import Room
from schemas.arrays import pack_tokens
from schemas.errors import InvalidValue
from schemas.prompts import PromptSubmitted
from schemas.rollouts import RolloutRequested
from slime_events.core.config.per_source import quotas, shares
from slime_events.core.state.group import GroupPhase, GroupState
from slime_events.core.state.run import RunPhase, RunState
from slime_events.loop.conductor.turns import next_turns
from tests.replay.replayed import policy_for, replayed
from tests.scripted_engine import Script
from tests.simulation.roles import keep_all
from tests.simulation.simulation import Simulation, make_plan

SHARES = {"quiz": 0.5, "file": 0.25}
"""What is left is everybody's."""


def state_of(waiting: list[tuple[str, int]], under_way: list[str] = ()) -> RunState:  # type: ignore[assignment]
    """waiting: source and priority of each prompt, in the order that they came."""
    state = RunState(run="r")
    for number, source in enumerate(under_way):
        group = _group(f"u{number}", source)
        group.phase = GroupPhase.REQUESTED
        state.groups[group.group] = group
    for number, (source, priority) in enumerate(waiting):
        group = _group(f"{source}-{number}", source)
        if priority:
            state.priorities = {**(state.priorities or {}), group.group: priority}
        state.groups[group.group] = group
        state.waiting.append(group.group)
    return state


def _group(name: str, source: str) -> GroupState:
    group = GroupState(group=name, prompt=pack_tokens([1]))
    if source != "file":
        group.share = source
    return group


def test_each_batch_has_the_shares() -> None:
    state = state_of([(source, 0) for source in ("quiz", "other") for _ in range(20)])
    turns = next_turns(state, make_plan(shares=SHARES), 8)
    assert Counter(name.partition("-")[0] for name in turns.groups) == {"quiz": 4, "other": 2}
    assert turns.draws == 2


def test_what_is_under_way_counts() -> None:
    state = state_of([("quiz", 0)] * 8, under_way=["quiz"] * 4)
    turns = next_turns(state, make_plan(shares=SHARES), 3)
    assert (turns.groups, turns.draws) == ([], 3)


def test_the_higher_priority_is_first_and_equal_ones_stay_in_order() -> None:
    state = state_of([("quiz", 0), ("quiz", 5), ("quiz", 0), ("quiz", 5), ("quiz", -1)])
    for plan in (make_plan(), make_plan(shares={"quiz": 1.0})):
        assert next_turns(state, plan, 5).groups == ["quiz-1", "quiz-3", "quiz-0", "quiz-2", "quiz-4"]


sources = st.sampled_from(["quiz", "other", "nats", "file"])


@given(
    st.lists(st.tuples(sources, st.integers(-1, 1)), max_size=12),
    st.lists(sources, max_size=12),
    st.integers(0, 12),
    st.booleans(),
    st.sampled_from([{}, SHARES, {"quiz": 1.0}, {"quiz": 0.0, "nats": 0.9}]),
)
def test_no_turn_is_lost(
    waiting: list[tuple[str, int]], under_way: list[str], count: int, draws: bool, parts: dict[str, float]
) -> None:
    state = state_of(waiting, under_way)
    turns = next_turns(state, make_plan(shares=parts, draws=draws), count)
    assert len(set(turns.groups)) == len(turns.groups)
    assert set(turns.groups) <= set(state.waiting)
    if draws:
        assert len(turns.groups) + turns.draws == count
    elif parts:
        assert (len(turns.groups), turns.draws) == (min(count, len(waiting)), 0)


async def test_a_run_with_shares_is_decided_again_as_it_was(tmp_path: Path) -> None:
    plan = make_plan(steps=4, groups=4, samples=1, shares=SHARES)
    async with Simulation(tmp_path, plan) as simulation:
        for source in ("quiz", "other"):
            prompts: list[Any] = [{"key": f"{source}{n}", "prompt": f"{source} {n}"} for n in range(20)]
            assert (await simulation.inbox.accept(json.dumps(prompts).encode(), None, source)).accepted
        simulation.start_engine(Script(chunk=8))
        assert await simulation.finish() is RunPhase.FINISHED
        requested = [event.group for event in simulation.events(RolloutRequested)]
        share = {event.group: event.share or "file" for event in simulation.events(PromptSubmitted)}
        for step in range(1, plan.steps):  # the first may have begun before the prompts were there
            batch = Counter(share[group] for group in requested[step * 4 : step * 4 + 4])
            assert batch == {"quiz": 2, "file": 1, "other": 1}
        report = replayed(simulation.log.records, policy_for(plan, keep_all))
        assert report.is_equal, report.differences[0]


def test_a_source_has_room_up_to_its_quota() -> None:
    state = state_of([("quiz", 0)] * 3 + [("nats", 0)])
    room = Room(10, {"quiz": 3, "nats": 5})
    assert [room.left(state, sender) for sender in ("quiz", "", "other")] == [0, 4, 6]


@pytest.mark.parametrize("text", ["quiz", "quiz=", "quiz=0.5,quiz=0.1", "quiz=0.9,file=0.2", "a b=0.1=2"])
def test_shares_that_cannot_be(text: str) -> None:
    with pytest.raises(InvalidValue):
        shares(text)


def test_numbers_of_sources() -> None:
    assert shares("quiz=0.3, file=0.5") == {"quiz": 0.3, "file": 0.5}
    assert quotas("quiz=10,nats=3") == {"quiz": 10, "nats": 3}
    assert shares(None) == {}
    with pytest.raises(InvalidValue):
        quotas("quiz=1.5")
