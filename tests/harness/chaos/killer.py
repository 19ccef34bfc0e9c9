"""`Killer`: carries a schedule out on a living run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import psutil

from tests.harness.chaos.family import Family
from tests.harness.chaos.schedule import Kind, Strike
from tests.harness.chaos.servers import Servers
from tests.harness.chaos.supervisor import Supervisor
from tests.harness.chaos.watcher import Watcher

LOOK_S = 0.02
DEADLINE_S = 240.0
"""For a process to be there, and for the run to make tokens again: many times what a start takes."""

ROLES = {
    Kind.ENGINE: "engine",
    Kind.CONDUCTOR: "conductor",
    Kind.INBOX: "inbox",
    Kind.GRADER: "grader",
    Kind.TRAINER: "trainer",
    Kind.ARCHIVIST: "archivist",
    Kind.GATEWAY: "gateway",
}
"""Roles that record `worker.joined`."""
ENDS_THE_DRIVER = (Kind.DRIVER, Kind.MACHINE, Kind.RAYLET)


class NoRecovery(Exception):
    """A process or the run did not recover in time."""


@dataclass(frozen=True, slots=True)
class Struck:
    """A kill. at: UTC ns; position: of the newest event seen before it; version: of the weights then."""

    number: int
    kind: Kind
    pid: int
    at: int
    position: int
    version: int


class Killer:
    """Kills the processes of a schedule. struck: the kills so far."""

    def __init__(self, family: Family, watcher: Watcher, supervisor: Supervisor, servers: Servers) -> None:
        self._family, self._watcher, self._supervisor, self._servers = family, watcher, supervisor, servers
        self.struck: list[Struck] = []

    async def carry_out(self, strikes: Sequence[Strike]) -> None:
        """Strike by the schedule, until the run ends. Raises NoRecovery, which names what is missing."""
        for strike in strikes:
            await self._until(partial(self._has_come_to, strike), "the next step", strike)
            if strike.waits:
                await self._until(self._moved, "a new token", strike)
            if strike.in_turn:
                await self._until(lambda: bool(self._watcher.open_turns), "an open turn", strike)
            await asyncio.sleep(strike.delay_s)
            await self._until(partial(self._strike, strike), f"a living {strike.kind}", strike)
            if self._watcher.over:
                return
        await self._until(self._moved, "a new token", strikes[-1])

    def _has_come_to(self, strike: Strike) -> bool:
        return self._watcher.position > 0 and self._watcher.version >= strike.after_version

    def _moved(self) -> bool:
        """Return whether tokens were made since the last kill."""
        return not self.struck or self._watcher.moved_since(self.struck[-1].at)

    def _strike(self, strike: Strike) -> bool:
        process = self._target(strike)
        if process is None or (strike.in_turn and not self._watcher.open_turns):
            return False
        if strike.kind in ENDS_THE_DRIVER:
            self._supervisor.expect_death()
        position, version = self._watcher.position, self._watcher.version
        if not self._family.kill(process):
            return False
        if strike.kind is Kind.MACHINE:
            self._family.kill_all(self._servers.beside())
        self.struck.append(Struck(strike.number, strike.kind, process.pid, time.time_ns(), position, version))
        return True

    def _target(self, strike: Strike) -> psutil.Process | None:
        kind, number = strike.kind, strike.number
        if kind in (Kind.DRIVER, Kind.MACHINE):
            return self._family.find(kind, [self._supervisor.pid])
        if kind is Kind.NATS:
            pids = self._servers.pids()
            return self._family.find(kind, pids[number % len(pids) :]) if pids else None
        return self._family.find(kind, self._watcher.pids(ROLES[kind]) if kind in ROLES else ())

    async def _until(self, holds: Callable[[], bool], what: str, strike: Strike) -> None:
        """Wait until `holds`. Each committed step restarts the deadline, since a slow run has not stopped."""
        version, end = self._watcher.version, time.monotonic() + DEADLINE_S
        while not (self._watcher.over or holds()):
            if self._watcher.version > version:
                version, end = self._watcher.version, time.monotonic() + DEADLINE_S
            if time.monotonic() > end:
                after = f"the kill of the {self.struck[-1].kind}" if self.struck else "the start"
                raise NoRecovery(
                    f"strike {strike.number} ({strike.kind}) waited {DEADLINE_S:.0f} s for {what} after {after}; the "
                    f"log is at position {self._watcher.position}, version {self._watcher.version}"
                )
            await asyncio.sleep(LOOK_S)
