"""One simulated run, for all tests of this folder."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from schemas.weights import WeightsPublished
from slime_events.core.run.run_reader import OpenedRun
from storage.memory_log import MemoryLog
from tests import made
from tests.audit.doctored import Doctored
from tests.conductor.driver import dropping
from tests.scripted_engine import Script
from tests.simulation.parts import ScriptedRanks
from tests.simulation.simulation import Simulation, make_plan

STEPS = 5


@dataclass(frozen=True)
class Recorded:
    """A finished run, and the disk that its checkpoints are on."""

    log: MemoryLog
    disk: dict[str, bytes]

    def opened(self, log: MemoryLog | None = None, base: Path | None = None) -> OpenedRun:
        settings = made.settings(trainer={"hf_checkpoint": str(base or "")})
        return made.opened(log or self.log, settings, "sim")

    def doctored(self) -> Doctored:
        return Doctored.of("sim", self.log.records)

    def digest(self, version: int) -> str:
        """Return the digest of the published weights."""
        events = (recorded.envelope.event for recorded in self.log.records)
        return next(e.digest for e in events if isinstance(e, WeightsPublished) and e.version == version)


def record(folder: Path, ranks: ScriptedRanks, **plan: Any) -> Recorded:
    """A filter, samples of several versions, five steps."""

    async def run() -> Recorded:
        shape = make_plan(max_staleness=1, draw=4, **plan)
        prompts = [f"p{n}" for n in range(7)]
        async with Simulation(folder, shape, judge=dropping(0.3), prompts=prompts, ranks=ranks) as sim:
            sim.start_engine(Script(chunk=8, seconds_per_chunk=0.002))
            await sim.finish()
            return Recorded(sim.log, ranks.disk)

    return asyncio.run(run())


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Record a run with a checkpoint of every second version."""
    return record(tmp_path_factory.mktemp("recorded"), ScriptedRanks(), checkpoint_every=2)
