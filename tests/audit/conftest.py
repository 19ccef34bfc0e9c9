"""One simulated run of each mode, for all tests of this folder."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest

from schemas.arrays import unpack
from serve_apps.engine.scripted_engine import Script
from slime_events.audit.audit import Audit
from slime_events.audit.rules import Rules
from slime_events.conductor.plan import Plan
from slime_events.config.algorithm import AlgorithmSettings
from storage.log import Recorded
from tests.audit.doctored import Doctored
from tests.conductor.driver import dropping
from tests.simulation.simulation import Simulation, make_plan

STEP = Script(chunk=8, seconds_per_chunk=0.002)


@dataclass(frozen=True)
class Run:
    """A finished run: its log and what bound it."""

    plan: Plan
    records: list[Recorded]
    folder: Path

    def auditor(self, **changes: object) -> Audit:
        """An audit by the run's own rules, which a simulated run.started does not say."""
        given = {"rules": Rules(self.plan, AlgorithmSettings()), "fetch": unpack} | changes
        return Audit("sim", **given)  # type: ignore[arg-type]

    def doctored(self) -> Doctored:
        """A copy to work on."""
        return Doctored.of("sim", self.records)


def run_to_the_end(folder: Path, plan: Plan) -> Run:
    """Two engines, a filter, an evaluation, two checkpoints, a bad line, several epochs."""

    async def run() -> list[Recorded]:
        prompts = ["a", {"input": 7}, *[f"p{n}" for n in range(5)]]
        async with Simulation(
            folder, plan, judge=dropping(0.3), prompts=prompts, evaluations={"held": ["one", "two"]}
        ) as sim:
            sim.start_engine(STEP)
            sim.start_engine(STEP)
            await sim.finish()
        return sim.log.records

    return Run(plan, asyncio.run(run()), folder)


def a_plan(**changes: object) -> Plan:
    return make_plan(**({"checkpoint_every": 2, "eval_every": 2, "eval_names": ("held",), "eval_samples": 2} | changes))


@pytest.fixture(scope="session")
def synchronous(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_to_the_end(tmp_path_factory.mktemp("synchronous"), a_plan())


@pytest.fixture(scope="session")
def asynchronous(tmp_path_factory: pytest.TempPathFactory) -> Run:
    plan = a_plan(max_staleness=2, draw=4, in_prompt_order=False)
    return run_to_the_end(tmp_path_factory.mktemp("asynchronous"), plan)
