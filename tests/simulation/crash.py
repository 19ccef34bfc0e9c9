"""`Crashed`: a run whose processes die at chosen appends, and are started again as a supervisor would.

Death is that of kill -9: from the chosen append on nothing of the process reaches the log, nothing that it holds stays,
and what it had taken from the queue comes back to others. The log and the disk are all that is left.
"""

from __future__ import annotations

import asyncio
import enum
import json
import shutil
import string
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from actors.archivist import SealPolicy
from actors.conductor import Readers
from actors.doors import PromptDoor
from actors.inbox import Doors, Inbox
from actors.log_keeper import LogKeeper
from actors.recorded_rollout_reader import RecordedRolloutReader
from schemas.ids import inbox_group_id
from schemas.runs import Branched, RunFinished
from schemas.subjects import about, of_type
from schemas.workers import WorkerLost
from serve_apps.rollouts.generate.function import GenerateSetup
from serve_apps.rollouts.rollout import ChunkRule
from slime_events.core.config.reward import RewardSettings
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_address import Incarnation
from slime_events.core.run.run_end import until_over
from slime_events.core.run.run_reader import OpenedRun
from slime_events.core.state.keeper import LatestState, StateKeeper
from slime_events.core.state.snapshot import Snapshots, low_water, training_start
from slime_events.loop.conductor.accept import GroupFilter
from slime_events.loop.conductor.plan import Plan
from slime_events.loop.conductor.prompts import PromptFeed
from slime_events.plugins.texts import Texts
from storage.archive.reader import ArchiveReader
from storage.follow import Follower
from storage.jetstream.address import NatsAddress
from storage.log import Append, Delivery, Fence
from tests import made
from tests.scripted_engine import Script, ScriptedDevice, ScriptedEngine
from tests.simulation.leaving import LeavingLog
from tests.simulation.parts import InstantPool, Line, LineConsumer, LineDelivery, ScriptedRanks
from tests.simulation.roles import (
    make_conductor,
    make_feed,
    make_outside,
    make_trainer,
    run_archivist,
    run_engine,
    run_grader,
    run_trainer_in_turns,
)

DEADLINE_S = 30.0
CHUNKS = ChunkRule(4, 100.0)
SEGMENTS = SealPolicy(max_bytes=6000, look_s=0.002)
"""Small, so that the archivist has something to say in the middle of a run."""


class Half(enum.StrEnum):
    """On which side of the append death comes."""

    BEFORE = "before it reached the log"
    AFTER = "after it was stored, before its ack"


class Scope(enum.StrEnum):
    """Who dies with the one that makes the append."""

    ROLE = "its process"
    MACHINE = "every process"


@dataclass(frozen=True, slots=True)
class Crash:
    """Death at the `at`-th append, counted from the crash before. role: whose appends are counted, None is all."""

    at: int
    half: Half = Half.BEFORE
    scope: Scope = Scope.MACHINE
    role: str | None = None


@dataclass(slots=True)
class Fate:
    """The crashes of a run in their order. died: what each of them met, in words."""

    crashes: Sequence[Crash] = ()
    died: list[str] = field(default_factory=list)
    _counted: int = 0

    @property
    def exhausted(self) -> bool:
        """Whether every crash has come."""
        return len(self.died) == len(self.crashes)

    def meet(self, role: str, appends: Sequence[Append]) -> Crash | None:
        """Count one append; the crash that it meets."""
        if self.exhausted:
            return None
        crash = self.crashes[len(self.died)]
        if crash.role not in (None, role):
            return None
        self._counted += 1
        if self._counted < crash.at:
            return None
        self._counted = 0
        types = ", ".join(append.envelope.type for append in appends)
        self.died.append(f"{crash.scope} died at append {crash.at} of the {role} [{types}], {crash.half}")
        return crash


@dataclass(eq=False)
class MortalLine(Line):
    """A process's way to the log, on which it may die. held: deliveries that come back to others then."""

    role: str = ""
    fate: Fate = field(default_factory=Fate)
    deaths: asyncio.Queue[tuple[MortalLine, Crash]] = field(default_factory=asyncio.Queue)
    held: list[Delivery] = field(default_factory=list)

    async def append(self, appends: Sequence[Append]) -> list[int]:
        self._check()
        crash = self.fate.meet(self.role, appends)
        if crash is None:
            return await super().append(appends)
        if crash.half is Half.AFTER:
            await super().append(appends)
        self.is_cut = True
        self.deaths.put_nowait((self, crash))
        never: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        return await never

    async def consume(self, name: str, subject: str, *, lease_s: float = 30.0, start: int = 1) -> Any:
        inner = await super().consume(name, subject, lease_s=lease_s, start=start)
        return _MortalConsumer(self, inner.inner)

    async def leases_run_out(self) -> None:
        """End all leases as time would."""
        for delivery in self.held:
            await delivery.release()


class _MortalConsumer(LineConsumer):
    line: MortalLine

    async def take(self, limit: int, wait_s: float) -> list[Delivery]:
        taken = await super().take(limit, wait_s)
        self.line.held += [delivery.inner for delivery in taken if isinstance(delivery, LineDelivery)]
        return taken


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Define what is run: the same for the run with crashes and the one without. snapshots: events between two of them.
    branched, beginning: where it continues from, and what its trainer begins with. feed: made in the run's folder.
    recorded: the run whose rollouts it recalls. texts: of the groups that `judge` is asked about. reward: what engines
    grade by where it is over at once. hold_s: how long an evaluation may keep an engine from newer weights. keep_steps:
    earlier ones leave the log; None: all of it stays. in_turns: trainer and engines use one device in turns.
    stores_later: versions are held in memory, which outlives processes, and stored after their commits.
    loses_memory: the memory is gone with each death of the trainer.
    """

    plan: Plan
    scripts: Sequence[Script] = (Script(chunk=4),)
    prompts: Sequence[Any] = tuple(f"prompt {n}" for n in range(12))
    evaluations: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    inbox: Sequence[Mapping[str, Any]] = ()
    judge: GroupFilter | None = None
    texts: Texts | None = None
    whole_groups: bool = False
    snapshots: int | None = None
    generate: GenerateSetup | None = None
    reward: RewardSettings | None = None
    branched: Branched | None = None
    beginning: bytes = b""
    feed: Callable[[Path], PromptFeed] | None = None
    recorded: OpenedRun | None = None
    hold_s: float = 0.001
    ranks: type[ScriptedRanks] = ScriptedRanks
    keep_steps: int | None = None
    in_turns: bool = False
    stores_later: bool = False
    loses_memory: bool = False


@dataclass(slots=True)
class _Process:
    """A process. name: id of an engine's worker."""

    line: MortalLine
    task: asyncio.Task[Any] = field(init=False)
    name: str = ""


class Crashed:
    """One run of a scene, with the crashes of a fate. `run` ends with the run; `log` is what is left."""

    def __init__(self, scene: Scene, folder: Path, fate: Fate | None = None) -> None:
        self.scene, self.folder, self.fate = scene, folder, fate or Fate()
        self.log = LeavingLog("sim")
        self.device = ScriptedDevice()
        first = scene.branched.version if scene.branched else 0
        self.disk: dict[str, bytes] = {f"{folder}/checkpoints/v{first:06d}": scene.beginning} if scene.branched else {}
        self.snapshots = Snapshots(folder / "snapshots")
        self._deaths: asyncio.Queue[tuple[MortalLine, Crash]] = asyncio.Queue()
        self._processes: dict[str, _Process] = {}
        self._born = 0
        self._incarnation = Incarnation()
        engines = {f"engine{n}": self._engine(script) for n, script in enumerate(scene.scripts)}
        self._roles: dict[str, Callable[[MortalLine], Coroutine[Any, Any, Any]]] = {
            "conductor": self._conduct,
            "grader": self._grade,
            "trainer": self._train,
            "archivist": self._archive,
            "inbox": self._take_in,
            **engines,
        }
        self.feed = scene.feed(folder) if scene.feed else make_feed(folder, scene.prompts, scene.evaluations)

    @property
    def roles(self) -> tuple[str, ...]:
        """Who takes part."""
        return tuple(self._roles)

    async def run(self) -> None:
        """To the end of the run and of all roles. Raises what ended one of them otherwise than by its fate."""
        await Participant(self.log, "launcher").append([made.started(branched=self.scene.branched)])
        try:
            async with asyncio.timeout(DEADLINE_S):
                for role in self._roles:
                    self._start(role)
                while await self._watch():
                    pass
        finally:
            for process in self._processes.values():
                await _end(process)

    async def _watch(self) -> bool:
        """Whether anybody is still at work, after the next death or end."""
        death = asyncio.create_task(self._deaths.get())
        alive = {process.task for process in self._processes.values() if not process.task.done()}
        try:
            await asyncio.wait({death, *alive}, return_when=asyncio.FIRST_COMPLETED)
            if death.done():
                await self._bury(*death.result())
                return bool(self._processes)
        finally:
            death.cancel()
        for process in self._processes.values():
            if process.task.done():
                process.task.result()
        return any(not process.task.done() for process in self._processes.values())

    async def _bury(self, line: MortalLine, crash: Crash) -> None:
        gone = [line.role] if crash.scope is Scope.ROLE else list(self._processes)
        for role in gone:
            self._processes[role].line.is_cut = True
        for role in gone:
            await _end(self._processes[role])
        if self.scene.loses_memory and "trainer" in gone:
            shutil.rmtree(self.folder / "memory", ignore_errors=True)
        if crash.scope is Scope.ROLE:
            await line.leases_run_out()
            if self.scene.in_turns and line.role.startswith("engine"):  # as the launcher does once its process is gone
                lost = WorkerLost(worker=self._processes[line.role].name, role="engine", reason="killed")
                await Participant(self.log, "launcher").append([lost])
        elif not await self._resume():
            self._processes = {}
            return
        for role in gone:
            self._start(role)

    async def _resume(self) -> bool:
        """Begin the next incarnation, which waits for no lease. Return False if the run is finished."""
        subject = about(self.log.run, "run", "run")
        last = await self.log.last(subject)
        assert last is not None
        if isinstance(last.envelope.event, RunFinished):
            return False
        before = self._incarnation
        resumed = made.resumed(before.number + 1)
        since = await Participant(self.log, "launcher").append_fenced(resumed, Fence(subject, last.position))
        done = await self.log.done_up_to(before.queue)
        self._incarnation = Incarnation(number=resumed.incarnation, since=since, requests_from=done + 1)
        return True

    def _start(self, role: str) -> None:
        line = MortalLine(self.log, role=role, fate=self.fate, deaths=self._deaths)
        process = self._processes[role] = _Process(line)
        process.task = asyncio.create_task(self._roles[role](line), name=role)

    def _worker(self, line: MortalLine, name: str | None = None) -> Participant:
        return Participant(line, line.role.rstrip(string.digits), name, incarnation=self._incarnation)

    async def _conduct(self, line: MortalLine) -> None:
        worker = self._worker(line)
        await self._prompts_are_in(line)
        await worker.join({})
        every = self.scene.snapshots
        keeper = StateKeeper(self.snapshots, every=every) if every else None
        readers = Readers(RecordedRolloutReader(worker.id, self.scene.recorded))
        await make_conductor(
            worker, self.scene.plan, self.feed, self.scene.judge, self.scene.texts, keeper=keeper, readers=readers
        ).run()

    async def _prompts_are_in(self, line: MortalLine) -> None:
        """Wait for what comes from outside before the first decision, whichever role dies: then decisions are
        the same.
        """
        missing = {inbox_group_id(prompt["key"], "") for prompt in self.scene.inbox}
        async with Follower(line, 1, of_type(self.log.run, "prompt.submitted")) as follower:
            while missing:
                missing -= {recorded.envelope.event.entity() for recorded in await follower.next(1.0)}

    async def _take_in(self, line: MortalLine) -> None:
        worker = self._worker(line)

        async def doors() -> Doors:
            return {"prompts": PromptDoor(make_outside(self.feed.tokenizer))}

        inbox = Inbox(worker, doors, LatestState(line, StateKeeper(self.snapshots)), NatsAddress(url=""))
        for prompt in self.scene.inbox:  # their sender asks again until it has an answer
            assert (await inbox.accept(json.dumps(prompt).encode())).accepted
        await until_over(worker)

    async def _grade(self, line: MortalLine) -> None:
        snapshot = await self.snapshots.newest(line)
        start = low_water(snapshot.state) if snapshot else 1
        await run_grader(self._worker(line), InstantPool(), whole_groups=self.scene.whole_groups, start=start)

    async def _archive(self, line: MortalLine) -> None:
        keep, trim_log = self.scene.keep_steps, None
        if keep is not None:
            log: Any = self.log
            opened = partial(ArchiveReader, str(self.folder / "archive"), self.log.run)
            queue = self._incarnation.queue
            trim_log = LogKeeper(log, self.snapshots, opened, steps=keep, queue=queue).trim
        await run_archivist(self._worker(line), self.folder, SEGMENTS, trim_log)

    async def _train(self, line: MortalLine) -> None:
        snapshot = await self.snapshots.newest(line)
        more: dict[str, Any] = {"start_of": partial(training_start, snapshot.state)} if snapshot else {}
        if self.scene.stores_later:
            more["training"] = {"memory": str(self.folder / "memory")}
        ranks, worker = self.scene.ranks(disk=self.disk), self._worker(line)
        if not self.scene.in_turns:
            await make_trainer(worker, self.scene.plan, ranks, self.folder, **more).run()
            return
        ranks.device = self.device
        try:
            await run_trainer_in_turns(worker, self.scene.plan, ranks, self.folder, **more)
        finally:
            self.device.leave(ranks)  # its processes end with it

    def _engine(self, script: Script) -> Callable[[MortalLine], Coroutine[Any, Any, None]]:
        def start(line: MortalLine) -> Coroutine[Any, Any, None]:
            self._born += 1
            self._processes[line.role].name = name = f"engine-{self._born}"
            return run_engine(
                self._worker(line, name),
                ScriptedEngine(script, device=self.device if self.scene.in_turns else None),
                in_turns=self.scene.in_turns,
                room=64,
                hold_s=self.scene.hold_s,
                rule=CHUNKS,
                lease_s=10.0,
                weights_deadline_s=10.0,
                generate=self.scene.generate,
                reward=self.scene.reward,
            )

        return start


async def _end(process: _Process) -> None:
    while not process.task.done():
        process.task.cancel()
        await asyncio.wait({process.task}, timeout=0.01)  # a group commit that waits for the log takes two
    await asyncio.gather(process.task, return_exceptions=True)
