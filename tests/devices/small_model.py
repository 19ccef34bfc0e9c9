"""A small model of a trainer and engines that use a device in turns: every interleaving of their actions, with kills.

A worker acts as `DeviceShare` does, on its own copy of `DeviceTurns`, which may be out of date. A killed worker keeps
its memory for a while, and its last append may reach the log at any later time, or never.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

from schemas.batches import BatchSealed
from schemas.devices import DeviceReleased, DeviceTaken, DeviceWanted, Side
from schemas.event import Event, type_of
from schemas.steps import StepCommitted
from schemas.weights import WeightsPublished
from schemas.workers import WorkerLost
from slime_events.core.devices.turns import DeviceTurns
from tests import made


class Phase(enum.Enum):
    """What a worker does next."""

    START = "asks for its turn"
    IDLE = "has no batch"
    WAIT = "waits for the device"
    HOLD = "uses the device"
    RESTED = "has given its memory back"
    DEAD = "was killed, and has its memory"
    GONE = "was killed, and its memory is free"


@dataclass(frozen=True, slots=True)
class Member:
    """A worker. number: how often it has released. read: events that it has folded."""

    name: str
    side: Side
    phase: Phase
    incarnation: int = 0
    number: int = 0
    read: int = 0
    resident: bool = False

    @property
    def alive(self) -> bool:
        return self.phase not in (Phase.DEAD, Phase.GONE)


class Entry(NamedTuple):
    """An event in a log. Equal for equal ids."""

    kind: str
    identity: tuple[str | int, ...]


class Late(NamedTuple):
    """An append of a killed worker that has not reached the log. fence: last position of a device event, if fenced."""

    entry: Entry
    fence: int | None


class World(NamedTuple):
    """A state of the model. kills, resumptions: how many may come."""

    log: tuple[Entry, ...]
    members: tuple[Member, ...]
    late: frozenset[Late]
    kills: int
    resumptions: int


class Edge(enum.Enum):
    """Kinds of actions. Only fair ones must happen for the run to end."""

    FAIR = "fair"
    ACCIDENT = "accident"


class SmallModel:
    """steps: of the run. `engines` and the numbers of accidents define its size."""

    def __init__(self, engines: int, steps: int, kills: int, resumptions: int = 0) -> None:
        self._engines, self._steps = engines, steps
        self.start = World((), self._born(0, 0), frozenset(), kills, resumptions)
        self._folded: dict[tuple[Entry, ...], DeviceTurns] = {(): DeviceTurns()}
        self._events: dict[Entry, Event] = {}

    def _entry(self, event: Event) -> Entry:
        entry = Entry(type_of(event), event.identity())
        self._events[entry] = event
        return entry

    def _born(self, incarnation: int, read: int) -> tuple[Member, ...]:
        trainer = Member(f"t{incarnation}", Side.TRAINER, Phase.START, incarnation)
        names = [f"{'abc'[n]}{incarnation}" for n in range(self._engines)]
        return (trainer, *(Member(name, Side.ENGINES, Phase.WAIT, incarnation) for name in names))

    def fold(self, log: tuple[Entry, ...]) -> DeviceTurns:
        """Return the turns after a log, which nobody may change."""
        if (turns := self._folded.get(log)) is None:
            turns = copy.deepcopy(self.fold(log[:-1]))
            recorded: Any = SimpleNamespace(position=len(log), envelope=SimpleNamespace(event=self._events[log[-1]]))
            turns.apply(recorded)
            self._folded[log] = turns
        return turns

    def is_done(self, world: World) -> bool:
        """Return whether all steps are committed."""
        return _count(world.log, StepCommitted) == self._steps

    def is_mixed(self, world: World) -> bool:
        """Return whether both sides use the device."""
        return len({member.side for member in world.members if member.resident}) > 1

    def moves(self, world: World) -> Iterator[tuple[Edge, World]]:
        """Yield the states that one action leads to."""
        for index, member in enumerate(world.members):
            yield from self._moves_of(world, index, member)
        yield from self._conductor(world)
        for late in world.late:
            yield Edge.ACCIDENT, self._append(world._replace(late=world.late - {late}), *late)[0]
        if world.resumptions:
            yield Edge.ACCIDENT, self._resumed(world)

    def _resumed(self, world: World) -> World:
        """Return the next incarnation: all processes are killed, and what they left is ended before run.resumed."""
        number = 1 + sum(member.incarnation for member in world.members[:1])
        late = {late for index in range(len(world.members)) for late in self._next_append(world, index)}
        log = (*world.log, self._entry(made.resumed(number)))
        members = tuple(replace(member, read=0) for member in self._born(number, 0))
        return World(log, members, world.late | late, world.kills, world.resumptions - 1)

    def _conductor(self, world: World) -> Iterator[tuple[Edge, World]]:
        """Seal the next batch, when an engine can have made its rollouts."""
        sealed, committed = _count(world.log, BatchSealed), _count(world.log, StepCommitted)
        able = any(member.resident and member.alive and member.side is Side.ENGINES for member in world.members)
        if able and sealed == committed < self._steps:
            yield Edge.FAIR, world._replace(log=(*world.log, self._entry(made.sealed(sealed))))

    def _append(self, world: World, entry: Entry, fence: int | None) -> tuple[World, bool]:
        """Append an event if its fence holds and the log does not have it."""
        position = max((n for n, stored in enumerate(world.log, 1) if stored.kind.startswith("device.")), default=0)
        if entry in world.log:
            return world, True
        if fence is not None and fence != position:
            return world, False
        return world._replace(log=(*world.log, entry)), True

    def _next_append(self, world: World, index: int) -> list[Late]:
        """Return the append that a worker would make now, if any."""
        member = world.members[index]
        if not member.alive:
            return []
        turns = self.fold(world.log[: member.read])
        if member.phase is Phase.START:
            wanted = DeviceWanted(worker=member.name, incarnation=member.incarnation)
            return [Late(self._entry(wanted), turns.position)]
        if member.phase is Phase.RESTED:
            released = DeviceReleased(worker=member.name, side=member.side, number=member.number)
            return [Late(self._entry(released), None)]
        is_held = turns.holds(member.name, member.number)
        if member.phase is Phase.WAIT and not is_held and turns.may_take(member.name, member.side):
            earlier = (other for other in world.members if other.side is Side.TRAINER and other is not member)
            if member.side is Side.ENGINES or not any(other.phase is Phase.DEAD for other in earlier):
                taken = DeviceTaken(
                    worker=member.name, side=member.side, number=member.number, incarnation=member.incarnation
                )
                return [Late(self._entry(taken), turns.position)]
        return []

    def _moves_of(self, world: World, index: int, member: Member) -> Iterator[tuple[Edge, World]]:
        if member.phase is Phase.DEAD:
            yield Edge.FAIR, _with(world, index, replace(member, phase=Phase.GONE, resident=False))
            return
        if member.phase is Phase.GONE:
            yield from self._after_death(world, member)
            return
        if member.read < len(world.log):
            yield Edge.FAIR, _with(world, index, replace(member, read=len(world.log)))
        for late in self._next_append(world, index):
            appended, is_stored = self._append(world, *late)
            yield Edge.FAIR, _with(appended, index, _after(member, late.entry) if is_stored else member)
            if world.kills:  # killed while the append is under way
                yield Edge.ACCIDENT, self._killed(world, index)._replace(late=world.late | {late})
        yield from self._work(world, index, member)
        if world.kills:
            yield Edge.ACCIDENT, self._killed(world, index)

    def _killed(self, world: World, index: int) -> World:
        """Kill a worker. Another one is started at once."""
        member, born = world.members[index], f"{world.members[index].name}'"
        phase = Phase.START if member.side is Side.TRAINER else Phase.WAIT
        killed = _with(world._replace(kills=world.kills - 1), index, replace(member, phase=Phase.DEAD))
        return killed._replace(members=(*killed.members, Member(born, member.side, phase, member.incarnation)))

    def _after_death(self, world: World, member: Member) -> Iterator[tuple[Edge, World]]:
        """Append worker.lost. For an engine it must come; for a trainer it may."""
        lost = self._entry(WorkerLost(worker=member.name, role=member.side.value, reason="killed"))
        if lost not in world.log:
            edge = Edge.FAIR if member.side is Side.ENGINES else Edge.ACCIDENT
            yield edge, world._replace(log=(*world.log, lost))

    def _work(self, world: World, index: int, member: Member) -> Iterator[tuple[Edge, World]]:
        turns = self.fold(world.log[: member.read])
        sealed, committed = _count(world.log[: member.read], BatchSealed), _count(world.log, StepCommitted)
        if member.phase is Phase.WAIT and turns.holds(member.name, member.number):
            yield Edge.FAIR, _with(world, index, replace(member, phase=Phase.HOLD, resident=True))
        elif member.phase is Phase.IDLE and sealed > committed:
            yield Edge.FAIR, _with(world, index, replace(member, phase=Phase.WAIT))
        elif member.phase is Phase.HOLD and member.side is Side.ENGINES:
            if turns.must_release(member.name):
                yield Edge.FAIR, _with(world, index, replace(member, phase=Phase.RESTED, resident=False))
        elif member.phase is Phase.HOLD:
            if not _count(world.log, WeightsPublished):
                yield Edge.FAIR, world._replace(log=(*world.log, self._entry(made.published(0))))
            elif sealed > committed:
                step = map(self._entry, (made.committed(committed), made.published(committed + 1)))
                yield Edge.FAIR, world._replace(log=(*world.log, *step))
            else:
                yield Edge.FAIR, _with(world, index, replace(member, phase=Phase.RESTED, resident=False))


def _with(world: World, index: int, member: Member) -> World:
    return world._replace(members=(*world.members[:index], member, *world.members[index + 1 :]))


def _count(log: tuple[Entry, ...], kind: type[Event]) -> int:
    return sum(entry.kind == type_of(kind) for entry in log)


def _after(member: Member, entry: Entry) -> Member:
    """Return a worker after its append."""
    if entry.kind == type_of(DeviceTaken):
        return member
    if entry.kind == type_of(DeviceWanted):
        return replace(member, phase=Phase.WAIT)
    phase = Phase.IDLE if member.side is Side.TRAINER else Phase.WAIT
    return replace(member, phase=phase, number=member.number + 1)
