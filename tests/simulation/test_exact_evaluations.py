"""Evaluations made by the version that they are of, whatever engines train on meanwhile."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from schemas.errors import EngineError
from schemas.evals import EvalCompleted
from schemas.event import Purpose
from schemas.rollouts import FailureKind, RolloutCompleted, RolloutFailed, RolloutProgressed, RolloutRequested, Sampling
from schemas.steps import StepCommitted
from schemas.weights import WeightsActivated, WeightsPublished
from serve_apps.engines.engine import Delta, GenerateRequest
from slime_events.core.run.participant import Participant
from slime_events.core.state.run import RunPhase
from tests.scripted_engine import Script, ScriptedEngine
from tests.simulation.simulation import Simulation, make_plan
from tests.simulation.test_run import check_run

SLOW = Script(chunk=8, seconds_per_chunk=0.004)
LONG = Sampling(max_new_tokens=160)
HELD = {"held": ["one", "two", "three"]}


def exact_plan(**changes: object):
    return make_plan(
        **{"eval_every": 2, "eval_names": ("held",), "eval_samples": 2, "eval_exact": True, "eval_sampling": LONG}
        | changes
    )


def check_exact(sim: Simulation) -> None:
    """Every token of an evaluation is of its version, and so says the event."""
    versions = {event.sample: event.max_version for event in sim.events(RolloutRequested, purpose=Purpose.EVAL)}
    assert versions
    assert None not in versions.values()
    for kind in (RolloutProgressed, RolloutCompleted):
        for event in sim.events(kind):
            if event.sample in versions:
                assert {span.version for span in event.spans} == {versions[event.sample]}
    for done in sim.events(EvalCompleted):
        assert (done.oldest_version, done.newest_version, done.failed) == (done.version, done.version, 0)


def check_training(sim: Simulation) -> None:
    """No training rollout has a token of weights older than it was asked for with, nor goes back to older ones."""
    oldest = {event.sample: event.min_version for event in sim.events(RolloutRequested, purpose=Purpose.TRAIN)}
    for event in sim.events(RolloutCompleted):
        if event.sample in oldest:
            versions = [span.version for span in event.spans]
            assert versions == sorted(versions)
            assert versions[0] >= oldest[event.sample]


@pytest.mark.parametrize("staleness", [0, 1, 2])
@pytest.mark.parametrize("engines", [1, 2])
@pytest.mark.parametrize("hold_s", [0.01, 60.0])
async def test_each_answer_is_of_the_version(tmp_path: Path, staleness: int, engines: int, hold_s: float) -> None:
    plan = exact_plan(max_staleness=staleness, in_prompt_order=staleness == 0)
    async with Simulation(tmp_path, plan, evaluations=HELD, train_s=0.01) as sim:
        for _ in range(engines):
            sim.start_engine(SLOW, hold_s=hold_s)
        assert await sim.finish() is RunPhase.FINISHED
    check_run(sim)
    check_exact(sim)
    check_training(sim)
    assert [event.version for event in sorted(sim.events(EvalCompleted), key=lambda e: e.version)] == [0, 2, 4, 5]


async def test_a_long_evaluation_does_not_hold_the_loop(tmp_path: Path) -> None:
    """All steps are trained while the evaluation of version 0 is being made, and it is made by version 0."""
    plan = exact_plan(eval_every=100, eval_sampling=Sampling(max_new_tokens=1600))
    async with Simulation(tmp_path, plan, evaluations={"held": ["one"]}, deadline_s=60.0) as sim:
        sim.start_engine(SLOW, hold_s=0.01)
        await sim.until(StepCommitted, 5)
        assert not sim.events(EvalCompleted)
        await sim.finish()
    check_exact(sim)
    check_training(sim)
    assert any(event.returns for event in sim.events(WeightsActivated)), "the engine went back to it"
    assert [event.version for event in sim.events(EvalCompleted)] == [0, 5]


async def test_a_short_one_is_finished_before_the_next_version_is_loaded(tmp_path: Path) -> None:
    plan = exact_plan(eval_sampling=Sampling(max_new_tokens=40))
    async with Simulation(tmp_path, plan, evaluations=HELD) as sim:
        sim.start_engine(SLOW, hold_s=60.0)
        await sim.finish()
    check_exact(sim)
    assert [event.version for event in sim.events(WeightsActivated)] == [0, 1, 2, 3, 4, 5]
    assert not any(event.returns for event in sim.events(WeightsActivated))


async def test_another_engine_loads_the_version_when_the_one_that_had_it_is_lost(tmp_path: Path) -> None:
    plan = exact_plan(eval_every=100, eval_sampling=Sampling(max_new_tokens=600))
    async with Simulation(tmp_path, plan, evaluations={"held": ["one"]}, train_s=0.01) as sim:
        line = sim.start_engine(SLOW, lease_s=0.2, hold_s=0.01)
        await sim.until(RolloutProgressed, sample="eval-held-v0-000000-s0")
        await sim.until(WeightsPublished, version=2)
        await sim.kill(line)
        sim.start_engine(SLOW, lease_s=0.2, hold_s=0.01)
        assert await sim.finish(dead=[line]) is RunPhase.FINISHED
    check_exact(sim)
    check_training(sim)
    (first,) = [event for event in sim.events(RolloutCompleted) if event.sample == "eval-held-v0-000000-s0"]
    assert first.length == 600
    assert not sim.events(RolloutFailed)


class Stuck(ScriptedEngine):
    """Answers of evaluations never come, and it does not hear that they are to end."""

    async def abort(self, rid: str) -> None:
        pass

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        if request.rid.startswith("eval"):
            await asyncio.Event().wait()
        async for delta in super().generate(request):
            yield delta


async def test_an_engine_whose_evaluation_does_not_end_is_given_up(tmp_path: Path) -> None:
    async with Simulation(tmp_path, exact_plan(eval_every=100), evaluations=HELD) as sim:
        sim.start_engine(Stuck(SLOW), hold_s=0.01, weights_deadline_s=0.2, name="stuck")
        with pytest.raises(EngineError):
            await sim.engines["stuck"]
        sim.start_engine(SLOW, lease_s=0.2)
        assert await sim.finish(dead=sim.lines[:1]) is RunPhase.FINISHED
    check_exact(sim)


async def test_a_version_that_is_gone_fails_the_answers_and_not_the_run(tmp_path: Path) -> None:
    plan = exact_plan(eval_every=100, eval_sampling=Sampling(max_new_tokens=1600))
    async with Simulation(tmp_path, plan, evaluations={"held": ["one"]}) as sim:
        sim.start_engine(SLOW, hold_s=0.01)
        await sim.until(WeightsActivated, version=2)
        for folder in (tmp_path / "weights").glob("v000000-*"):
            shutil.rmtree(folder)
        assert await sim.finish() is RunPhase.FINISHED
    failed = sim.events(RolloutFailed)
    assert {event.kind for event in failed} == {FailureKind.INVALID}
    assert all("weight version 0" in event.message for event in failed)
    done = {event.version: event for event in sim.events(EvalCompleted)}
    assert (done[0].failed, done[0].mean, done[5].failed) == (2, 0.0, 0)


async def test_versions_between_those_that_are_published(tmp_path: Path) -> None:
    plan = exact_plan(eval_every=3, publish_every=2, max_staleness=1, in_prompt_order=False)
    async with Simulation(tmp_path, plan, evaluations=HELD) as sim:
        sim.start_engine(SLOW, hold_s=0.01)
        assert await sim.finish() is RunPhase.FINISHED
    check_exact(sim)
    assert sorted(event.version for event in sim.events(EvalCompleted)) == [0, 4, 5]


async def test_an_answer_of_a_version_that_nobody_published_fails_alone(tmp_path: Path) -> None:
    async with Simulation(tmp_path, exact_plan(eval_every=100), evaluations=HELD) as sim:
        sim.start_engine(SLOW, hold_s=0.01)
        await sim.until(WeightsActivated, version=1)
        request = sim.events(RolloutRequested, purpose=Purpose.EVAL)[0]
        other = msgspec.structs.replace(request, sample="eval-held-v0-000099-s0", min_version=-5, max_version=-5)
        await Participant(sim.log, "conductor").append([other])
        (failed,) = await sim.until(RolloutFailed, sample=other.sample)
        assert failed.kind is FailureKind.INVALID
        await sim.until(StepCommitted, 5)


async def test_the_cheap_way_takes_what_the_engine_runs(tmp_path: Path) -> None:
    plan = exact_plan(eval_exact=False, eval_every=100)
    async with Simulation(tmp_path, plan, evaluations=HELD) as sim:
        sim.start_engine(replace(SLOW, seconds_per_chunk=0.01))
        await sim.finish()
    assert {event.max_version for event in sim.events(RolloutRequested)} == {None}
    first = next(event for event in sim.events(EvalCompleted) if event.version == 0)
    assert first.newest_version > first.version


async def test_weights_that_nobody_publishes_are_not_waited_for_without_end(tmp_path: Path) -> None:
    async with Simulation(tmp_path, exact_plan(), evaluations=HELD) as sim:
        sim.start_engine(SLOW, weights_deadline_s=0.05)
        await sim.until(WeightsActivated)
        request = sim.events(RolloutRequested, purpose=Purpose.EVAL)[0]
        other = msgspec.structs.replace(request, sample="eval-held-v99-000000-s0", min_version=99, max_version=99)
        await Participant(sim.log, "conductor").append([other])
        (failed,) = await sim.until(RolloutFailed, sample=other.sample)
    assert failed.kind is FailureKind.ENGINE
