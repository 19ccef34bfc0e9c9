"""Engines that die, stall or come back from the dead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from schemas.arrays import unpack
from schemas.errors import EngineError, WeightsDamaged
from schemas.groups import GroupRejected
from schemas.rollouts import (
    FailureKind,
    RolloutCompleted,
    RolloutFailed,
    RolloutProgressed,
    RolloutRequested,
    StopReason,
)
from schemas.weights import WeightsPublished
from serve_apps.engines.engine import Delta, GenerateRequest
from serve_apps.rollouts.rollout import ChunkRule
from slime_events.core.state.run import RunPhase
from tests.scripted_engine import Script, ScriptedEngine
from tests.simulation.simulation import Simulation, make_plan
from tests.simulation.test_run import check_run

ONE = make_plan(steps=1, groups=1, samples=1)
CHUNKS = ChunkRule(4, 10.0)


class Gated(ScriptedEngine):
    """Hands out `free` tokens of each response and holds the rest back until `gate` opens."""

    def __init__(self, script: Script, free: int) -> None:
        super().__init__(script)
        self.gate, self._free = asyncio.Event(), free

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        handed = 0
        async for delta in super().generate(request):
            if handed >= self._free:
                await self.gate.wait()
            handed += len(delta.tokens)
            yield delta


async def whole_response(request: RolloutRequested, script: Script) -> list[int]:
    """Return the answer of an engine that is left alone."""
    engine = ScriptedEngine(script)
    await engine.start(1.0)
    generate = GenerateRequest("r", unpack(request.prompt), request.sampling, request.seed)
    return [token async for delta in engine.generate(generate) for token in delta.tokens.tolist()]


async def test_a_killed_engine_s_work_goes_on_from_its_last_chunk(tmp_path: Path) -> None:
    script = Script(chunk=4)
    async with Simulation(tmp_path, ONE) as sim:
        first = sim.start_engine(Gated(script, 12), rule=CHUNKS, lease_s=0.2)
        await sim.until(RolloutProgressed, 3)
        await sim.kill(first)
        sim.start_engine(script, name="second", rule=CHUNKS)
        assert await sim.finish(dead=[first]) is RunPhase.FINISHED
    check_run(sim)
    chunks = sim.events(RolloutProgressed)
    assert [(chunk.start, chunk.engine) for chunk in chunks][:4] == [
        (0, "engine-1"), (4, "engine-1"), (8, "engine-1"), (12, "second"),
    ]  # fmt: skip
    (request,) = sim.events(RolloutRequested)
    assert not sim.events(RolloutFailed), "a death is no failure of the sample"
    (batch,) = sim.ranks.trained
    assert batch.samples[0].tokens[-24:].tolist() == await whole_response(request, script)


async def test_many_deaths(tmp_path: Path) -> None:
    """Engine after engine is killed in the middle of its work; nothing is lost and nothing is there twice."""
    script = Script(chunk=4, seconds_per_chunk=0.005)
    async with Simulation(tmp_path, make_plan(max_staleness=1, in_prompt_order=False)) as sim:
        dead = []
        for number in range(6):
            line = sim.start_engine(script, name=f"mortal-{number}", rule=CHUNKS, lease_s=0.1)
            await asyncio.sleep(0.05)
            await sim.kill(line)
            dead.append(line)
        sim.start_engine(script, rule=CHUNKS, lease_s=0.1)
        assert await sim.finish(dead=dead) is RunPhase.FINISHED
    check_run(sim)
    assert not sim.events(RolloutFailed)


async def test_a_zombie_is_refused_by_the_fence(tmp_path: Path) -> None:
    """End its lease and let another engine continue with other tokens; then it wakes up and wants to continue too."""
    zombie_engine = Gated(Script(chunk=4), 8)
    heir_engine = Gated(Script(chunk=4, vocabulary=7), 8)
    async with Simulation(tmp_path, ONE) as sim:
        zombie = sim.start_engine(zombie_engine, name="zombie", rule=CHUNKS, lease_s=0.1, room=1)
        zombie.is_deaf = True
        await sim.until(RolloutProgressed, 2)
        sim.start_engine(heir_engine, name="heir", rule=CHUNKS, room=1)
        await sim.until(RolloutProgressed, 2, engine="heir")
        zombie_engine.gate.set()
        async with asyncio.timeout(60):  # a refused chunk ends the zombie's response
            while zombie_engine.running:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not zombie.acked, "and leaves the ack to the heir"
        heir_engine.gate.set()
        assert await sim.finish() is RunPhase.FINISHED
    check_run(sim)
    assert [(c.start, c.engine) for c in sim.events(RolloutProgressed)][:5] == [
        (0, "zombie"), (4, "zombie"), (8, "heir"), (12, "heir"), (16, "heir"),
    ]  # fmt: skip
    assert [event.engine for event in sim.events(RolloutCompleted)] == ["heir"]


async def test_a_dead_scheduler_ends_its_worker_and_spares_the_samples(tmp_path: Path) -> None:
    """All its responses fail at once. None of that is the samples' fault: others take them over at once."""
    async with Simulation(tmp_path) as sim:
        broken = sim.start_engine(Script(chunk=4, die_after_tokens=40), name="broken", lease_s=30.0)
        with pytest.raises(EngineError, match="died"):
            await asyncio.wait_for(asyncio.shield(sim.engines["broken"]), 60)
        sim.start_engine(Script(chunk=8))
        assert await sim.finish(dead=[broken]) is RunPhase.FINISHED
    check_run(sim)
    assert not sim.events(RolloutFailed)


async def test_a_failed_response_is_asked_for_again(tmp_path: Path) -> None:
    refused = {"train-0-000000-s0-0-1": "no room", "train-0-000000-s0-1-1": "no room"}
    async with Simulation(tmp_path) as sim:
        sim.start_engine(Script(refused=refused))
        assert await sim.finish() is RunPhase.FINISHED
    check_run(sim)
    assert [event.attempt for event in sim.events(RolloutFailed)] == [0, 1]
    assert sim.events(RolloutCompleted, sample="train-0-000000-s0")[0].attempt == 2
    assert not sim.events(GroupRejected)


class Misbehaving(ScriptedEngine):
    """Its first responses end as they should not."""

    def __init__(self, script: Script, how: str, times: int) -> None:
        super().__init__(script)
        self._how, self._times = how, times

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        async for delta in super().generate(request):
            if self._times and len(request.resume) + len(delta.tokens) >= 8:
                self._times -= 1
                if self._how == "raise":
                    raise ZeroDivisionError("a bug")
                if self._how == "abort":
                    await self.abort(request.rid)
                if self._how == "silence":
                    return
            yield delta


@pytest.mark.parametrize(
    ("how", "reason"), [("raise", "ZeroDivisionError: a bug"), ("abort", "aborted"), ("silence", "without a finish")]
)
async def test_no_response_is_lost_in_silence(tmp_path: Path, how: str, reason: str) -> None:
    async with Simulation(tmp_path) as sim:
        sim.start_engine(Misbehaving(Script(chunk=8), how, 2))
        assert await sim.finish() is RunPhase.FINISHED
    check_run(sim)
    failures = sim.events(RolloutFailed)
    assert len(failures) == 2
    assert all(reason in event.message and event.kind is FailureKind.ENGINE for event in failures)
    assert all(event.stop is not StopReason.ABORT for event in sim.events(RolloutCompleted))


async def test_weights_that_were_damaged_stop_the_engine_before_it_uses_them(tmp_path: Path) -> None:
    async with Simulation(tmp_path) as sim:
        (published,) = await sim.until(WeightsPublished)
        with (Path(published.url) / "model.safetensors").open("r+b") as file:
            file.seek(-1, 2)
            file.write(b"\xff")
        sim.start_engine(name="careful")
        with pytest.raises(WeightsDamaged):
            await asyncio.wait_for(asyncio.shield(sim.engines["careful"]), 60)


async def test_weights_that_never_come_have_a_deadline(tmp_path: Path) -> None:
    async with Simulation(tmp_path, make_plan(steps=1, max_attempts=1)) as sim:
        sim.start_engine(Script(seconds_to_update=1000.0), weights_deadline_s=0.05)
        (failed, *_) = await sim.until(RolloutFailed)
    assert "waited 0 s for weight version 0" in failed.message


async def test_an_engine_that_answers_when_it_is_asked_again_is_kept(tmp_path: Path) -> None:
    answers = iter([False, True, False, True])
    all_given = asyncio.Event()

    class Hesitant(ScriptedEngine):
        async def healthy(self) -> bool:
            if (answer := next(answers, None)) is None:
                all_given.set()
            return answer is not False

    async with Simulation(tmp_path) as sim:
        sim.start_engine(Hesitant(Script(seconds_per_chunk=1000.0)), name="hesitant", lease_s=0.1)
        all_answers = asyncio.create_task(all_given.wait())
        async with asyncio.timeout(60):
            await asyncio.wait({all_answers, sim.engines["hesitant"]}, return_when=asyncio.FIRST_COMPLETED)
    assert all_answers.done()


async def test_a_cancellation_that_is_lost_once_does_not_keep_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.cancellation.AGAIN_S", 0.1)
    cancelled = asyncio.Event()

    class Stubborn(ScriptedEngine):
        async def healthy(self) -> bool:
            cancelled.set()
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                await asyncio.sleep(1000)  # as if the first had never come
            return True

    async with Simulation(tmp_path) as sim:
        line = sim.start_engine(Stubborn(Script(seconds_per_chunk=1000.0)), lease_s=0.1)
        async with asyncio.timeout(60):
            await cancelled.wait()
            await sim.kill(line)
