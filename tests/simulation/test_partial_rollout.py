"""Test rollouts that rest at step boundaries and continue under the next weights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.arrays import unpack
from schemas.batches import BatchSealed
from schemas.event import Purpose
from schemas.rollouts import (
    RolloutCompleted,
    RolloutFailed,
    RolloutProgressed,
    RolloutRequested,
    RolloutSuspended,
    SuspendReason,
)
from schemas.steps import StepCommitted
from schemas.weights import WeightsPublished
from serve_apps.engines.engine import Delta, GenerateRequest
from serve_apps.rollouts.rollout import ChunkRule
from slime_events.analysis.audit.audit import Audit
from slime_events.analysis.audit.ledger import Rules
from slime_events.app.cli.render.audit_text import report_text
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.state.run import RunPhase
from slime_events.loop.conductor.plan import Plan
from tests.harness.history.checker import check
from tests.scripted_engine import Script, ScriptedEngine
from tests.simulation.simulation import Simulation, make_plan
from tests.simulation.test_run import check_run

SCRIPT = Script(chunk=2, seconds_per_chunk=0.002)
CHUNKS = ChunkRule(4, 10.0)


class LongTail(ScriptedEngine):
    """Responses of 2 to 24 tokens, by their seed."""

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        sampling = msgspec.structs.replace(request.sampling, max_new_tokens=2 + request.seed % 23)
        async for delta in super().generate(replace(request, sampling=sampling)):
            yield delta


def partial_plan(**changes: Any) -> Plan:
    """Twice as many groups are drawn as a step takes, and those that end first are trained first."""
    fields = {"groups": 2, "samples": 2, "draw": 4, "in_prompt_order": False, "partial_rollout": True}
    return make_plan(**(fields | changes))


def check_history(sim: Simulation) -> None:
    """Check the log by the audit and by the checker of raw records."""
    audited = Audit("sim", rules=Rules(sim.plan, AlgorithmSettings()), fetch=unpack)
    for recorded in sim.log.records:
        audited.apply(recorded)
    report = audited.finish()
    assert report.clean, report_text(report, 0)
    raw = [(recorded.position, recorded.subject, recorded.data) for recorded in sim.log.records]
    assert check(raw, bound=sim.plan.staleness_bound) == []


def check_rests(sim: Simulation) -> int:
    """Check what holds of every rest, in log order; return how many ended."""
    check_history(sim)
    rests: dict[str, tuple[int, int]] = {}
    resting: dict[str, int] = {}
    boundary = next_step = version = published = ended = 0
    for recorded in sim.log.records:
        event = recorded.envelope.event
        match event:
            case BatchSealed():
                next_step = event.step + 1
                boundary = recorded.position if event.suspends else boundary
            case StepCommitted():
                version = event.version
            case WeightsPublished():
                published = event.version
            case RolloutSuspended():
                attempt, position = rests[event.sample]
                assert (event.attempt, event.reason) == (attempt, SuspendReason.STEP_BOUNDARY)
                assert position < boundary, "only what was asked for before a batch that suspends"
                resting[event.sample] = attempt
            case RolloutRequested():
                if event.sample in resting:
                    ended += 1
                    assert event.attempt == resting.pop(event.sample) + 1
                    assert next_step <= version + sim.plan.max_staleness, "not before there is something to seal"
                    assert event.min_version == published
                rests[event.sample] = (event.attempt, recorded.position)
            case RolloutProgressed() | RolloutCompleted():
                assert event.sample not in resting, "nothing is made of a rollout that rests"
    return ended


@pytest.mark.parametrize("staleness", [0, 1])
async def test_unfinished_rollouts_rest_until_the_next_weights(tmp_path: Path, staleness: int) -> None:
    async with Simulation(tmp_path, partial_plan(max_staleness=staleness, draw=8), train_s=0.1) as sim:
        for _ in range(2):  # of the 16 rollouts of a draw 6 are under way at once, so that some are left at any time
            sim.start_engine(LongTail(SCRIPT), rule=CHUNKS, room=3)
        assert await sim.finish() is RunPhase.FINISHED
    check_run(sim)
    assert check_rests(sim)
    assert sim.conductor.state.counts.suspensions == len(sim.events(RolloutSuspended))
    assert not sim.events(RolloutFailed)
    rested = {event.sample for event in sim.events(RolloutSuspended) if event.length}
    mixed = [event for event in sim.events(RolloutCompleted) if event.sample in rested and len(event.spans) > 1]
    assert mixed, "they continue from the tokens, log-probs and spans they had"
    assert all(event.loss_mask is None for event in sim.events(RolloutCompleted))


async def test_without_the_flag_nothing_rests(tmp_path: Path) -> None:
    async with Simulation(tmp_path, partial_plan(partial_rollout=False), train_s=0.02) as sim:
        sim.start_engine(LongTail(SCRIPT), rule=CHUNKS)
        await sim.finish()
    check_run(sim)
    assert not sim.events(RolloutSuspended)
    assert not any(event.suspends for event in sim.events(BatchSealed))


async def test_rollouts_that_rested_are_masked_by_span_and_no_others(tmp_path: Path) -> None:
    async with Simulation(tmp_path, partial_plan(mask_offpolicy=True, steps=8), train_s=0.02) as sim:
        sim.start_engine(LongTail(SCRIPT), rule=CHUNKS)
        await sim.finish()
    check_run(sim)
    check_history(sim)
    rested = {event.sample for event in sim.events(RolloutSuspended)}
    masked = 0
    for event in sim.events(RolloutCompleted):
        older = [span for span in event.spans if span.version < event.spans[-1].version]
        if event.sample not in rested or not older:
            assert event.loss_mask is None
            continue
        masked += 1
        assert event.loss_mask is not None
        mask = unpack(event.loss_mask)
        last = event.spans[-1]
        assert mask.tolist() == [0] * last.start + [1] * (last.end - last.start)
    assert masked
    trained = {sample.sample: sample for batch in sim.ranks.trained for sample in batch.samples}
    masks = {s: unpack(e.loss_mask) for e in sim.events(RolloutCompleted) if e.loss_mask for s in [e.sample]}
    assert any(not trained[sample].loss_mask.all() for sample in masks.keys() & trained.keys())
    for sample in masks.keys() & trained.keys():
        assert trained[sample].loss_mask.tolist() == masks[sample].tolist()


async def test_a_rest_survives_dead_engines(tmp_path: Path) -> None:
    """Kill them while rollouts run, get the order to rest, or continue: each continues from what the log holds."""
    async with Simulation(tmp_path, partial_plan(steps=8, draw=8), train_s=0.02) as sim:
        dead = []  # of the 16 rollouts of a draw, an engine has 3 under way at once: some are left at any time
        for number in range(6):
            line = sim.start_engine(LongTail(SCRIPT), name=f"mortal-{number}", rule=CHUNKS, lease_s=0.1, room=3)
            await asyncio.sleep(0.04)
            await sim.kill(line)
            dead.append(line)
        sim.start_engine(LongTail(SCRIPT), rule=CHUNKS, lease_s=0.1, room=3)
        assert await sim.finish(dead=dead) is RunPhase.FINISHED
    check_run(sim)
    assert check_rests(sim)
    assert not sim.events(RolloutFailed)


async def test_evaluations_never_rest(tmp_path: Path) -> None:
    plan = partial_plan(eval_every=1, eval_names=("held",), eval_samples=2)
    async with Simulation(tmp_path, plan, train_s=0.01, evaluations={"held": ["one", "two"]}) as sim:
        sim.start_engine(LongTail(replace(SCRIPT, seconds_per_chunk=0.01)), rule=CHUNKS)
        await sim.finish()
    check_run(sim)
    rested = {event.sample for event in sim.events(RolloutSuspended)}
    assert rested
    assert not rested & {event.sample for event in sim.events(RolloutRequested, purpose=Purpose.EVAL)}
