"""`Simulation`: conductor, grader, trainer and rollout workers as tasks of one event loop, over one `MemoryLog`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from actors.conductor import Readers
from actors.doors import PromptDoor, RewardDoor, TrajectoryDoor
from actors.inbox import Doors, Inbox
from actors.offered_prompts import OfferedPrompts
from actors.offered_rollouts import OfferedRollouts
from actors.recorded_rollout_reader import RecordedRolloutReader
from actors.trainer.trainer import Trainer
from schemas.arrays import unpack
from schemas.codec import decode
from schemas.event import Event
from schemas.rollouts import Sampling
from schemas.runs import RunStarted
from serve_apps.engines.engine import Engine
from serve_apps.engines.engine_weights import HOLD_S
from serve_apps.rollouts.rollout import ChunkRule
from slime_events.core.config.reward import RewardSettings
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_address import Incarnation
from slime_events.core.run.run_reader import OpenedRun
from slime_events.core.state.apply import apply
from slime_events.core.state.keeper import LatestState
from slime_events.core.state.run import RunPhase, RunState
from slime_events.loop.conductor.accept import GroupFilter
from slime_events.loop.conductor.cycle import Policy
from slime_events.loop.conductor.outside_rollouts import Limits, OutsideRollouts
from slime_events.loop.conductor.plan import Plan
from slime_events.loop.conductor.prompts import PromptFeed
from storage.follow import Follower
from storage.jetstream.address import NatsAddress
from storage.log import Recorded
from storage.memory_log import MemoryLog
from tests.plans import fields_of_plan
from tests.scripted_engine import Script, ScriptedEngine
from tests.simulation.parts import InstantPool, Line, ScriptedRanks
from tests.simulation.roles import make_conductor, make_feed, make_outside, make_trainer, run_engine, run_grader

EventT = TypeVar("EventT", bound=Event)
SAMPLING = Sampling(max_new_tokens=24)
CHUNKS = ChunkRule(tokens=8, seconds=10.0)
DEADLINE_S = 120.0
"""A simulation that takes longer hangs."""


def make_plan(**changes: Any) -> Plan:
    """Five steps of two groups of three samples of 24 tokens."""
    return Plan(**({"steps": 5, "groups": 2, "samples": 3, "sampling": SAMPLING} | fields_of_plan(changes, SAMPLING)))


class Simulation:
    """One run. Start more engines whenever; `finish` waits for the end and for every role's."""

    def __init__(
        self,
        folder: Path,
        plan: Plan | None = None,
        *,
        pool: Any = None,
        judge: GroupFilter | None = None,
        whole_groups: bool = False,
        deadline_s: float = 10.0,
        train_s: float = 0.0,
        ranks: Any = None,
        prompts: Sequence[Any] | None = None,
        evaluations: dict[str, Sequence[Any]] | None = None,
        incarnation: Incarnation | None = None,
        started: RunStarted | None = None,
        feed: PromptFeed | None = None,
        recorded: OpenedRun | None = None,
        policy: Policy | None = None,
        log: MemoryLog | None = None,
        training: Mapping[str, Any] | None = None,
        shares: str = "",
    ) -> None:
        self._shares = shares
        self._training = dict(training or {})
        self._incarnation = incarnation
        self._started = started or RunStarted(settings={}, code_version="")
        self.folder, self.plan = folder, plan or make_plan()
        self.log = log or MemoryLog("sim")
        self.lines: list[Line] = []
        self.engines: dict[str, asyncio.Task[None]] = {}
        self.ranks = ranks or ScriptedRanks(train_s)
        self.pool = pool or InstantPool()
        rows = [f"prompt {n}" for n in range(40)] if prompts is None else prompts
        self.feed = feed or make_feed(folder, rows, evaluations or {})
        worker = self._worker("conductor")
        self.outside = make_outside(self.feed.tokenizer)
        offered = OfferedPrompts(self.log, self.outside)
        offered_readers = OfferedRollouts(self.log, worker.id, unpack)
        readers = Readers(RecordedRolloutReader(worker.id, recorded), offered=offered, outside=offered_readers)
        more: dict[str, Any] = {"deadline_s": deadline_s, "readers": readers, "policy": policy}
        self.conductor = make_conductor(worker, self.plan, self.feed, judge, **more)
        self.state_now = LatestState(self.log)
        self.inbox = Inbox(self._worker("inbox"), self._doors, self.state_now, NatsAddress(url=""))
        self.trainer = self._new_trainer()
        self._whole_groups = whole_groups
        self._roles: list[asyncio.Task[Any]] = []

    async def _doors(self) -> Doors:
        limits = Limits(self.plan.samples, self.plan.sampling.max_new_tokens, None, bound=8, vocabulary=256)
        rewards = RewardDoor(self.log, RewardSettings(rm_type="outside", reward_sources=["raters"]))
        trajectories = TrajectoryDoor(OutsideRollouts(self.outside, limits, {}))
        return {"prompts": PromptDoor(self.outside), "trajectories": trajectories, "rewards": rewards}

    def begin_incarnation(self, incarnation: Incarnation) -> None:
        """Start a new incarnation; what starts from here on belongs to it."""
        self._incarnation = incarnation

    def _worker(self, role: str) -> Participant:
        return Participant(self.log, role, incarnation=self._incarnation)

    def _new_trainer(self, *, exact: bool = False) -> Trainer:
        return make_trainer(
            self._worker("trainer"),
            self.plan,
            self.ranks,
            self.folder,
            self._training | {"exact": exact},
            shares=self._shares,
        )

    async def __aenter__(self) -> Simulation:
        await Participant(self.log, "launcher").append([self._started])
        self._roles = [
            asyncio.create_task(role, name=name)
            for name, role in (
                ("conductor", self.conductor.run()),
                ("grader", run_grader(self._worker("grader"), self.pool, whole_groups=self._whole_groups)),
                ("trainer", self.trainer.run()),
            )
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [*self._roles, *self.engines.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def start_engine(
        self,
        script: Script | Engine | None = None,
        *,
        name: str | None = None,
        room: int = 64,
        rule: ChunkRule = CHUNKS,
        lease_s: float = 60.0,
        weights_deadline_s: float = 60.0,
        hold_s: float = HOLD_S,
        **more: Any,
    ) -> Line:
        """One more engine; its way to the log. more: arguments of `run_engine`."""
        line = Line(self.log)
        self.lines.append(line)
        name = name or f"engine-{len(self.lines)}"
        engine = ScriptedEngine(script) if isinstance(script, Script | None) else script
        worker = Participant(line, "engine", name, incarnation=self._incarnation)
        deadlines = {"lease_s": lease_s, "weights_deadline_s": weights_deadline_s, "hold_s": hold_s}
        more = {"shares": self._shares, **more}
        serving = run_engine(worker, engine, room=room, rule=rule, **deadlines, **more)
        self.engines[name] = asyncio.create_task(serving, name=name)
        return line

    def start_role(self, name: str, role: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """One more role, to the end of the run."""
        self._roles.append(asyncio.create_task(role, name=name))
        return self._roles[-1]

    def forget_role(self, task: asyncio.Task[Any]) -> None:
        """Nobody waits for it any more."""
        self._roles.remove(task)

    async def kill_role(self, task: asyncio.Task[Any]) -> None:
        """Kill a role like kill -9: what it had not appended is lost."""
        self.forget_role(task)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def kill(self, line: Line) -> None:
        """Kill it like kill -9: nothing more of it reaches the log, no lease is given back."""
        line.is_cut = True
        task = list(self.engines.values())[self.lines.index(line)]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def kill_trainer(self) -> None:
        """Kill the trainer like kill -9: what was not appended is lost, and so is all that the ranks held."""
        task = self.disown_trainer()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def disown_trainer(self) -> asyncio.Task[Any]:
        """Stop waiting for the trainer; it continues by itself."""
        (task,) = (role for role in self._roles if role.get_name() == "trainer")
        self._roles.remove(task)
        return task

    def start_trainer(self, ranks: Any, *, exact: bool = False) -> asyncio.Task[int]:
        """Another one, with ranks that hold the base."""
        self.ranks = ranks
        self.trainer = self._new_trainer(exact=exact)
        task = asyncio.create_task(self.trainer.run(), name="trainer")
        self._roles.append(task)
        return task

    async def finish(self, dead: Sequence[Line] = (), *, within_s: float = DEADLINE_S) -> RunPhase:
        """Wait for the run's end and all roles'; raises what ended one of them. dead: engines that may have failed."""
        names = list(self.engines)
        mortal = {self.engines[names[self.lines.index(line)]] for line in dead}
        async with asyncio.timeout(within_s):
            conductor, *others = self._roles
            waiting = {conductor, *others, *self.engines.values()} - mortal
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        return self.conductor.state.phase

    async def until(self, kind: type[EventT], count: int = 1, **fields: Any) -> list[EventT]:
        """Wait until `count` events of a kind, with these fields, are in the log."""
        events: list[EventT] = []
        async with asyncio.timeout(DEADLINE_S), Follower(self.log) as follower:
            while len(events) < count:
                events += _of(await follower.next(1.0), kind, fields)
        return events

    def events(self, kind: type[EventT], **fields: Any) -> list[EventT]:
        """All events of a kind in the log, in order."""
        return _of(self.log.records, kind, fields)

    def fold(self, upto: int | None = None) -> RunState:
        """The state that a new process would come to."""
        state = RunState(run="sim")
        for recorded in self.log.records[:upto]:
            apply(state, Recorded(recorded.position, recorded.subject, decode(recorded.data), recorded.data))
        return state


def _of(records: Sequence[Recorded], kind: type[EventT], fields: dict[str, Any]) -> list[EventT]:
    events = (recorded.envelope.event for recorded in records)
    return [
        event
        for event in events
        if isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items())
    ]
