"""Clean logs, one of each kind of run: simulated, finished, with nothing to find."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from schemas.arrays import unpack
from schemas.commands import CommandDone, CommandGiven, CommandKind
from schemas.rewards import RewardFailureKind
from slime_events.analysis.audit.audit import Audit
from slime_events.analysis.audit.ledger import Ledger, Rules, read_ledger
from slime_events.analysis.audit.recorded_rollouts import RecordedEnds
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.run.participant import Participant
from slime_events.core.training.datums import Datum, pack_datums
from slime_events.loop.conductor.plan import Plan
from slime_events.plugins.rewards.outcome import Outcome, RewardFailure
from slime_events.plugins.sample import Sample
from storage.log import Recorded
from storage.memory_log import MemoryLog
from tests import made
from tests.agents.stage import ASKED, Stage, ask, seal
from tests.audit.doctored import Doctored
from tests.conductor.driver import dropping
from tests.generate.scene import a_run
from tests.learner.learning import Learning
from tests.scripted_engine import Script
from tests.simulation.parts import InstantPool, by_text
from tests.simulation.simulation import Simulation, make_plan
from tests.simulation.test_branch import branch
from tests.simulation.test_branch import run as run_in_order
from tests.simulation.test_recalled import HALF, archive_of, ends_in, first_run, recalling
from tests.simulation.test_recalled import run as run_recalling
from tests.tinker.scene import DrivenSimulation

STEP = Script(chunk=8, seconds_per_chunk=0.002)


@dataclass(frozen=True)
class Run:
    """A finished run: its log and what bound it. parent, recorded: what other runs' logs have of its rollouts,
    others: the records there of those that it recalls."""

    plan: Plan | None
    records: list[Recorded]
    folder: Path
    parent: Ledger | None = None
    recorded: RecordedEnds | None = None
    others: Sequence[Recorded] = ()
    name: str = "sim"

    def auditor(self, **changes: object) -> Audit:
        """An audit by the run's own rules, which a simulated run.started does not say."""
        options = {"rules": Rules(self.plan, AlgorithmSettings()), "fetch": unpack}
        options |= {"parent": self.parent, "recorded": self.recorded} | changes
        return Audit(self.name, **options)  # type: ignore[arg-type]

    def doctored(self) -> Doctored:
        """A copy to work on."""
        return Doctored.of(self.name, self.records)


def a_plan(**changes: object) -> Plan:
    return make_plan(
        **(
            {"checkpoint_every": 2, "eval_every": 2, "eval_names": ("held",), "eval_samples": 2, "eval_exact": True}
            | changes
        )
    )


async def _simulated(folder: Path, plan: Plan) -> Run:
    """Two engines, a filter, an evaluation, two checkpoints, a bad line, several epochs."""
    prompts = ["a", {"input": 7}, *[f"p{n}" for n in range(5)]]
    async with Simulation(
        folder, plan, judge=dropping(0.3), prompts=prompts, evaluations={"held": ["one", "two"]}
    ) as sim:
        sim.start_engine(STEP)
        sim.start_engine(STEP)
        await sim.finish()
    return Run(plan, sim.log.records, folder)


async def _synchronous(folder: Path) -> Run:
    return await _simulated(folder, a_plan())


async def _asynchronous(folder: Path) -> Run:
    return await _simulated(folder, a_plan(max_staleness=2, draw=4, in_prompt_order=False))


def _graded(sample: Sample) -> Outcome | float:
    if sample.prompt == "fails":
        return RewardFailure(kind=RewardFailureKind.RAISED, message="x", grader="test", grader_digest="")
    return by_text(sample)


async def _failing(folder: Path) -> Run:
    """Without a filter: a group whose rewards fail is rejected while those before it wait for their batch."""
    plan = make_plan(steps=2, groups=4, verdicts_at_once=False)
    prompts = ["a", "b", "fails", *[f"p{n}" for n in range(9)]]
    async with Simulation(folder, plan, prompts=prompts, pool=InstantPool(_graded)) as sim:
        sim.start_engine(STEP)
        await sim.finish()
    return Run(plan, sim.log.records, folder)


async def _branch(folder: Path) -> Run:
    """Record a branch from version 1, over the same prompts."""
    sim = await branch(await run_in_order(folder, make_plan(steps=3)), 1)
    return Run(sim.plan, sim.log.records, folder)


async def _learner(folder: Path) -> Run:
    """Two steps on the rollouts of another run."""
    async with Simulation(folder, make_plan(steps=2)) as sim:
        sim.start_engine(Script(chunk=24))
        await sim.finish()
    learning = Learning(sim.log, folder / "second", steps=2)
    await learning.begin()
    await learning.run()
    parent = await read_ledger("sim", sim.log.read())
    return Run(None, learning.log.records, folder, parent=parent, name="second")


async def _recalling(folder: Path) -> Run:
    """Two steps whose groups are recorded ones of another run."""
    first = await first_run(folder, steps=2)
    feed = await recalling(folder / "second", archive_of(first), replace(HALF, archive_share=1.0, prompt_rest=0))
    sim = await run_recalling(folder / "second", feed, recorded=archive_of(first), plan={"steps": 2})
    return Run(sim.plan, sim.log.records, folder, recorded=ends_in(first.log), others=first.log.records)


async def _turns(folder: Path) -> Run:
    """A step of two rollouts that a generate function makes: three turns and three samples each."""
    plan = make_plan(steps=1, groups=1, samples=2)
    crashed = a_run(folder, "fan_out", plan)
    await crashed.run()
    log: MemoryLog = crashed.log
    return Run(plan, log.records, folder)


async def _agents(folder: Path) -> Run:
    """Two steps of sessions of agents: the first fails, the others have two paths each, which share a turn."""
    stage = Stage(folder)
    async with stage.simulation, stage.gateway() as client:
        stage.simulation.start_engine(STEP)
        failing = await stage.open(client)
        await ask(client, failing, ASKED)
        await seal(client, failing, exit_code=1)
        for _ in range(stage.plan.steps * stage.plan.samples):
            session = await stage.open(client)
            reply = await ask(client, session, ASKED)
            for question in ("one way", "another way"):
                await ask(client, session, [*ASKED, reply, {"role": "user", "content": question}])
            await seal(client, session, reward=1.0)
        await stage.simulation.finish()
    return Run(stage.plan, stage.simulation.log.records, folder)


async def _driven(folder: Path) -> Run:
    """Two steps that a client's calls make, and a save between them."""
    passed, stepped = "forward_backward", "optim_step"
    kinds = ["create_model", passed, passed, stepped, "save_weights", passed, stepped]
    ids = np.array([1, 2, 3], np.int32)
    datums = pack_datums([Datum(ids, ids, {"weights": np.ones(3, np.float32)})])
    passing = {"arguments": {"loss_fn": "cross_entropy", "config": {}}, "datums": datums}
    others = {"optim_step": {"arguments": {"adam_params": {}}}, "save_weights": {"arguments": {"path": "x"}}}
    started = made.started({"run": {"tinker": "127.0.0.1:1"}})
    async with DrivenSimulation(folder, steps=2, started=started) as simulation:
        simulation.start_engine(STEP)
        for number, kind in enumerate(kinds):
            about = {"command": f"tinker-0-m0-{number:06d}", "model": "tinker-0-m0", "number": number}
            outcome = passing if kind == "forward_backward" else others.get(kind, {})
            command = CommandGiven(**about, kind=CommandKind(kind), **outcome)
            await Participant(simulation.log, "tinker", "tinker-1").append([command])
            await simulation.until(CommandDone, command=command.command)
        await simulation.finish()
    return Run(None, simulation.log.records, folder)


MAKERS: dict[str, Callable[[Path], Awaitable[Run]]] = {
    "synchronous": _synchronous,
    "asynchronous": _asynchronous,
    "failing": _failing,
    "branch": _branch,
    "learner": _learner,
    "recalling": _recalling,
    "turns": _turns,
    "agents": _agents,
    "driven": _driven,
}


class CleanLogs(dict[str, Run]):
    """Hold logs by name, each built at its first use."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __missing__(self, name: str) -> Run:
        folder = self._folder / name
        folder.mkdir()
        with ThreadPoolExecutor(1) as thread:  # a test that asks for it has a loop of its own
            self[name] = thread.submit(lambda: asyncio.run(MAKERS[name](folder))).result()
        return self[name]
