"""Whole runs, start to end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from schemas.arrays import unpack
from schemas.batches import BatchSealed
from schemas.checkpoints import CheckpointSaved
from schemas.errors import DataError
from schemas.evals import EvalCompleted
from schemas.prompts import PromptRejected
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted, RolloutProgressed, RolloutRequested
from schemas.runs import FinishReason, RunFailed, RunFinished
from schemas.steps import StepCommitted
from schemas.weights import WeightsActivated, WeightsPublished
from serve_apps.engines.engine import Delta, GenerateRequest
from serve_apps.rollouts.rollout import ChunkRule
from slime_events.analysis.audit.audit import Audit
from slime_events.analysis.audit.ledger import Rules
from slime_events.app.cli.render.audit_text import report_text
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.state.run import RunPhase, state_digest
from slime_events.core.tokens.trajectory import Trajectories, content_digest
from tests.scripted_engine import Script, ScriptedEngine
from tests.simulation.simulation import Simulation, make_plan

STEP = Script(chunk=8, seconds_per_chunk=0.002)


def check_run(sim: Simulation, bound: int | None = None) -> None:
    """Check what holds of every finished run. bound: on staleness, if recorded rollouts have another than the
    plan's.
    """
    (finished,) = sim.events(RunFinished)
    before = sim.fold(finished.events)
    assert state_digest(before) == finished.state_digest
    assert before.events == finished.events
    sealed, committed = sim.events(BatchSealed), sim.events(StepCommitted)
    assert [event.step for event in committed] == [event.step for event in sealed] == list(range(sim.plan.steps))
    trained = [sample.sample for batch in sim.ranks.trained for sample in batch.samples]
    assert trained == [sample for event in sealed for sample in event.samples]
    assert len(set(trained)) == len(trained) == sim.plan.steps * sim.plan.groups * sim.plan.samples
    assert sim.conductor.state.weights_digest == committed[-1].weights_digest
    for event in committed:
        assert event.parent_version - sealed[event.step].oldest_version <= (bound or sim.plan.staleness_bound)
    check_tokens(sim)
    check_audit(sim)


def check_audit(sim: Simulation) -> None:
    """Audit by the run's own rules, which a simulated run.started lacks."""
    auditor = Audit("sim", rules=Rules(sim.plan, AlgorithmSettings()), fetch=unpack)
    for recorded in sim.log.records:
        auditor.apply(recorded)
    report = auditor.finish()
    assert report.clean, report_text(report, 0)


def check_tokens(sim: Simulation) -> None:
    """Chunks lie end to end, and what was trained on is what the log holds."""
    trajectories = Trajectories(unpack)
    for recorded in sim.log.records:
        trajectories.apply(recorded.envelope.event, recorded.position)  # raises where a token is missing or doubled
    for done in sim.events(RolloutCompleted):
        trajectory = trajectories.by_sample[done.sample]
        assert content_digest(trajectory.tokens, trajectory.log_probs) == done.digest
        assert [span.start for span in done.spans] == [0, *[span.end for span in done.spans][:-1]]
    for batch in sim.ranks.trained:
        for sample in batch.samples:
            np.testing.assert_array_equal(
                sample.tokens[-sample.response_length :], trajectories.by_sample[sample.sample].tokens
            )


@pytest.mark.parametrize("staleness", [0, 2])
async def test_five_steps_with_two_engines(tmp_path: Path, staleness: int) -> None:
    plan = make_plan(max_staleness=staleness, in_prompt_order=not staleness, checkpoint_every=2)
    async with Simulation(tmp_path, plan) as sim:
        lines = [sim.start_engine(STEP), sim.start_engine(STEP)]
        assert await sim.finish() is RunPhase.FINISHED
    check_run(sim)
    shares = [len(line.taken) for line in lines]
    assert min(shares) > 0.2 * sum(shares), f"both work: {shares}"
    assert sorted(lines[0].acked + lines[1].acked) == sorted(r.sample for r in sim.events(RolloutRequested))
    assert [event.version for event in sim.events(WeightsPublished)] == list(range(6))
    activated = {event.version for event in sim.events(WeightsActivated)}
    assert activated >= ({0} if staleness else {0, 1, 2, 3, 4})
    assert [event.version for event in sim.events(CheckpointSaved)] == [2, 4]
    assert len(sim.ranks.saved) == 2
    if not staleness:
        assert all(event.oldest_version == event.step for event in sim.events(BatchSealed))


async def test_the_same_run_twice_is_the_same_training(tmp_path: Path) -> None:
    """At staleness 0, whatever the engines' pace and number."""
    digests = []
    for number, scripts in enumerate([[STEP], [Script(chunk=3), Script(chunk=16, seconds_per_chunk=0.01)]]):
        folder = tmp_path / str(number)
        folder.mkdir()
        async with Simulation(folder) as sim:
            for script in scripts:
                sim.start_engine(script)
            await sim.finish()
        digests.append([(e.batch_digest, e.weights_digest) for e in sim.events(StepCommitted)])
    assert digests[0] == digests[1]


async def test_weights_during_a_rollout_make_two_spans(tmp_path: Path) -> None:
    plan = make_plan(groups=1, samples=2, max_staleness=1, in_prompt_order=False)
    async with Simulation(tmp_path, plan) as sim:
        sim.start_engine(Script(chunk=4, seconds_per_chunk=0.002, seconds_to_update=0.005), room=1)
        sim.start_engine(Script(chunk=4, seconds_per_chunk=0.03), room=1)
        await sim.finish()
    check_run(sim)
    mixed = [event for event in sim.events(RolloutCompleted) if len(event.spans) > 1]
    assert mixed
    assert all([s.version for s in e.spans] == sorted({s.version for s in e.spans}) for e in mixed)
    assert any(event.resumed for event in sim.events(WeightsActivated))


@pytest.mark.parametrize(
    ("rule", "sizes"), [(ChunkRule(8, 1e9), {8}), (ChunkRule(1000, 0.0), {4}), (ChunkRule(1000, 1e9), set())]
)
async def test_chunks_by_tokens_and_by_seconds(tmp_path: Path, rule: ChunkRule, sizes: set[int]) -> None:
    """Generate 24 tokens, four at a time. At 0 s a chunk has all that there is; the end has the rest."""
    async with Simulation(tmp_path, make_plan(steps=1)) as sim:
        sim.start_engine(Script(chunk=4), rule=rule)
        await sim.finish()
    assert {event.tokens.n for event in sim.events(RolloutProgressed)} == sizes
    check_tokens(sim)


async def test_evaluations_beside_the_loop(tmp_path: Path) -> None:
    plan = make_plan(eval_every=2, eval_names=("held",), eval_samples=2)
    async with Simulation(tmp_path, plan, evaluations={"held": ["one", "two", "three"]}) as sim:
        sim.start_engine(STEP)
        await sim.finish()
    check_run(sim)
    done = sim.events(EvalCompleted)
    assert [event.version for event in done] == [0, 2, 4, 5]
    assert all((event.samples, event.failed) == (6, 0) and 0 < event.mean < 1 for event in done)
    assert sim.conductor.state.evals == {}


async def test_an_evaluation_set_without_prompts_is_an_error(tmp_path: Path) -> None:
    plan = make_plan(eval_every=2, eval_names=("held",))
    async with Simulation(tmp_path, plan, evaluations={"held": [{"input": 7}]}) as sim:
        sim.start_engine(STEP)
        with pytest.raises(DataError, match="held"):
            await sim.finish()
        (failed,) = await sim.until(RunFailed)
    assert "held" in failed.reason


async def test_bad_lines_are_named_and_the_others_go_on(tmp_path: Path) -> None:
    prompts = [{"input": 7}, "good", "x" * 500, *[f"p{n}" for n in range(20)]]
    async with Simulation(tmp_path, make_plan(steps=2), prompts=prompts) as sim:
        sim.start_engine(STEP)
        await sim.finish()
    check_run(sim)
    assert [event.source.line for event in sim.events(PromptRejected)] == [1, 3]
    assert "200" in sim.events(PromptRejected)[1].reason


async def test_interrupted(tmp_path: Path) -> None:
    async with Simulation(tmp_path, make_plan(steps=1000)) as sim:
        sim.start_engine(STEP)
        await sim.until(StepCommitted, 2)
        sim.conductor.stop()
        assert await sim.finish() is RunPhase.FINISHED
    (finished,) = sim.events(RunFinished)
    assert finished.reason is FinishReason.INTERRUPTED
    assert finished.steps >= 2
    assert state_digest(sim.fold(finished.events)) == finished.state_digest


async def test_interrupted_before_anybody_is_ready(tmp_path: Path) -> None:
    """Roles that come after the end see it, and end too."""
    async with Simulation(tmp_path) as sim:
        sim.conductor.stop()
        await sim.until(RunFinished)
        sim.start_engine(STEP)
        assert await sim.finish() is RunPhase.FINISHED


@pytest.mark.usefixtures("quick_looks")
@pytest.mark.parametrize(
    ("engines", "waited_for"), [(0, "an engine to activate version 0"), (1, "6 samples to be generated")]
)
async def test_a_stall_names_what_it_waited_for(tmp_path: Path, engines: int, waited_for: str) -> None:
    async with Simulation(tmp_path, deadline_s=0.6) as sim:
        for _ in range(engines):
            sim.start_engine(Script(seconds_per_chunk=1000.0))
        assert await sim.finish() is RunPhase.FAILED
    (failed,) = sim.events(RunFailed)
    assert failed.waited_for == waited_for
    assert waited_for in failed.reason
    assert "no progress for" in failed.reason


async def test_a_thousand_open_samples(tmp_path: Path) -> None:
    """More than any role takes at once. Engines and trainer take no time."""
    plan = make_plan(steps=2, groups=64, samples=8, max_staleness=1, in_prompt_order=False)
    async with Simulation(tmp_path, plan) as sim:
        sim.start_engine(Script(chunk=24), room=512)
        await sim.finish()
    check_run(sim)
    assert len(sim.events(RewardAssigned)) == len(sim.events(RolloutCompleted)) >= 1024


async def test_a_request_that_is_given_out_twice_is_made_once(tmp_path: Path) -> None:
    engine = ScriptedEngine(STEP)
    async with Simulation(tmp_path, make_plan(steps=2)) as sim:
        sim.start_engine(engine).copies = 2
        await sim.finish()
    check_run(sim)
    assert engine.tokens_generated == sum(event.length for event in sim.events(RolloutCompleted))


async def test_one_that_is_given_out_twice_may_end_after_its_second(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker ends both, and the engine takes its time over the first: nobody waits for it any more."""

    class Reluctant(ScriptedEngine):
        async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
            try:
                async for delta in super().generate(request):
                    yield delta
            finally:
                await asyncio.sleep(0.01)

    engine = Reluctant(Script(seconds_per_chunk=1000.0))
    async with Simulation(tmp_path) as sim:
        line = sim.start_engine(engine)
        line.copies = 2
        while not engine.running:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await sim.kill(line)
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []
