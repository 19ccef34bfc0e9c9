"""Who holds a request: the engine that works on it, for as long as it does, and no other one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from schemas.rollouts import RolloutCompleted, RolloutProgressed, StopReason
from serve_apps.rollouts.rollout import ChunkRule
from slime_events.core.state.run import RunPhase
from tests.clock import Clock
from tests.scripted_engine import Script
from tests.simulation.simulation import Simulation
from tests.simulation.test_faults import CHUNKS, ONE, Gated
from tests.simulation.test_run import check_run

LEASE_S = 60.0


async def test_a_zombie_that_ends_after_its_heir_has_said_chunks_is_refused(tmp_path: Path) -> None:
    """It has said no chunk, so only the fence of its end keeps it from ending what the heir is in the middle of."""
    zombie_engine, heir_engine = Gated(Script(chunk=4), 0), Gated(Script(chunk=4, vocabulary=7), 8)
    async with Simulation(tmp_path, ONE) as sim:
        zombie = sim.start_engine(zombie_engine, name="zombie", rule=ChunkRule(1000, 1000.0), lease_s=0.1, room=1)
        zombie.is_deaf = True
        async with asyncio.timeout(60):
            while not zombie.taken:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        sim.start_engine(heir_engine, name="heir", rule=CHUNKS, room=1)
        await sim.until(RolloutProgressed, 2, engine="heir")
        zombie_engine.gate.set()
        async with asyncio.timeout(60):
            while zombie_engine.running or zombie_engine.tokens_generated < 24:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)  # for an end that nobody refuses
        assert not zombie.acked, "and leaves the ack to the heir"
        heir_engine.gate.set()
        assert await sim.finish() is RunPhase.FINISHED
    check_run(sim)
    (completed,) = sim.events(RolloutCompleted)
    assert (completed.engine, completed.stop) == ("heir", StopReason.LENGTH)


async def test_a_rollout_of_several_leases_stays_with_its_engine(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.memory_log.time", SimpleNamespace(monotonic=clock.time))
    slow = Gated(Script(chunk=4), 8)
    async with Simulation(tmp_path, ONE, deadline_s=1e6) as sim:
        sim.start_engine(slow, name="slow", rule=CHUNKS, lease_s=LEASE_S)
        await sim.until(RolloutProgressed, 2)
        idle = sim.start_engine(Script(chunk=4), name="idle", rule=CHUNKS, lease_s=LEASE_S)
        for _ in range(10):
            clock.forward(LEASE_S / 3 + 1.0)
            await asyncio.sleep(0.01)
        slow.gate.set()
        assert await sim.finish() is RunPhase.FINISHED
    check_run(sim)
    assert not idle.taken
    (completed,) = sim.events(RolloutCompleted)
    assert (completed.engine, completed.attempt) == ("slow", 0)
