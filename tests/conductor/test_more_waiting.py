"""Prompts that come while there is no room decide nothing: the conductor need not look."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.envelope import enclose
from schemas.event import Event
from schemas.ids import INBOX
from schemas.prompts import PromptSubmitted, Source
from schemas.rollouts import RolloutRequested
from slime_events.algorithms.reward_norm import normalize_rewards
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.state.apply import apply
from slime_events.core.state.run import RunPhase, RunState
from slime_events.loop.conductor.cycle import run_cycle
from slime_events.loop.conductor.decide import decides_with_more_waiting
from storage.log import Append, Recorded
from tests import made
from tests.scripted_engine import Script
from tests.simulation.roles import keep_all
from tests.simulation.simulation import Simulation, make_plan

PLANS: dict[str, dict[str, Any]] = {
    "synchronous": {},
    "ahead": {"max_staleness": 2, "in_prompt_order": False},
    "over-sampling": {"draw": 5, "max_staleness": 1, "in_prompt_order": False},
    "shares": {"shares": {"nats": 0.5}, "max_staleness": 1, "in_prompt_order": False},
    "evaluations": {"eval_every": 1, "eval_names": ("held",)},
}


def came(number: int) -> PromptSubmitted:
    return made.submitted(
        f"{INBOX}-more-{number}",
        text="more",
        tokens=[1, 2],
        source=Source(path=INBOX, key=str(number)),
        dataset=INBOX,
        share="nats",
    )


def with_one_more(state: RunState, number: int) -> RunState:
    copy = msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=RunState)
    apply(copy, Recorded(copy.position + 1, "", enclose(copy.run, came(number), at=1, producer="inbox-1"), b"more"))
    return copy


@pytest.mark.parametrize("name", PLANS)
async def test_what_is_decided_with_one_more_was_decided_without_it(tmp_path: Path, name: str) -> None:
    """At every position of a run: what the rule leaves out is nothing but what the cycle before has said."""
    plan = make_plan(steps=4, **PLANS[name])
    async with Simulation(tmp_path, plan, evaluations={"held": ["a"]}) as sim:
        await sim.inbox.accept(msgspec.json.encode([{"key": str(n), "prompt": f"outside {n}"} for n in range(9)]))
        sim.start_engine(Script(chunk=8))
        assert await sim.finish() is RunPhase.FINISHED

    def cycle(state: RunState) -> list[Event]:
        by = AlgorithmSettings()
        return run_cycle(state, plan, keep_all, lambda raw, sizes: normalize_rewards(raw, sizes, by), sim.feed)

    state, left_out, looked_at = RunState(run="sim"), 0, 0
    for recorded in sim.log.records[:-1]:
        apply(state, recorded)
        more = with_one_more(state, recorded.position)
        if decides_with_more_waiting(more, plan):
            looked_at += 1
            continue
        left_out += 1
        before, after = cycle(state), cycle(more)
        assert all(event in before for event in after), f"position {recorded.position}"
    assert min(left_out, looked_at) > 5


async def test_a_flood_makes_no_cycles(tmp_path: Path) -> None:
    """While the room is full."""
    async with Simulation(tmp_path, make_plan(steps=1), prompts=[]) as sim:
        cycles: list[int] = []
        cycle = sim.conductor._cycle

        async def counted() -> None:
            cycles.append(sim.conductor.state.position)
            await cycle()

        sim.conductor._cycle = counted  # type: ignore[method-assign]
        await sim.log.append([Append(enclose("sim", came(n), at=1, producer="inbox-1")) for n in range(2)])
        await sim.until(RolloutRequested, 6)
        await asyncio.sleep(0.1)
        before = len(cycles)
        for number in range(10, 210):
            await sim.log.append([Append(enclose("sim", came(number), at=1, producer="inbox-1"))])
            await asyncio.sleep(0)
        assert len(cycles) - before <= 2, "those that are due after a time"
        sim.start_engine(Script(chunk=8))
        assert await sim.finish() is RunPhase.FINISHED
