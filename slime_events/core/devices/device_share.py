"""`DeviceShare`: a worker's share of the devices that trainer and engines use in turns."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from schemas.devices import SHARED, DeviceReleased, DeviceTaken, DeviceWanted, Side
from schemas.errors import Conflict, DeadlineExceeded
from schemas.event import Event, type_of
from schemas.subjects import about, of_type
from schemas.workers import WorkerLost
from slime_events.core.child.process_table import runs
from slime_events.core.devices.turns import FOLDED, NEWEST, DeviceTurns
from slime_events.core.run.participant import Participant, subjects_of
from slime_events.core.run.run_address import Incarnation
from storage.follow import Follower
from storage.log import Fence, Recorded

DEADLINE_S = 1800.0
"""Most seconds in which the other side must release the devices in our turn. An engine may be starting."""
LOOK_S = 0.5
"""Seconds between looks at the end of the run and at processes, if no event arrives."""


class Resident(Protocol):
    """A user of the devices' memory: the ranks of a trainer, or an engine."""

    async def rest(self) -> None:
        """Give the memory of the devices back. When this returns, others can use it. A second call does nothing."""

    async def wake(self) -> None:
        """Use the devices again. A second call does nothing."""


class DeviceShare:
    """Takes and releases the devices for one worker, which has one task that calls this.

    part: what rests while the worker does not hold the devices. It begins when the devices are taken the first time,
    which is the caller's to do. deadline_s: how long the other side may keep the devices in the worker's turn.
    """

    def __init__(self, worker: Participant, side: Side, part: Resident, deadline_s: float = DEADLINE_S) -> None:
        self._worker, self._side, self._part, self._deadline_s = worker, side, part, deadline_s
        self._turns = DeviceTurns()
        self._follower: Follower | None = None
        self._incarnation = worker.incarnation or Incarnation()
        self._number, self._rests, self._over = 0, False, False

    @asynccontextmanager
    async def following(self) -> AsyncIterator[DeviceShare]:
        """Read the log up to now, and follow it within the context. A long run's past is not read.

        The devices' events of earlier incarnations do not matter. Of batches, steps and versions the newest are enough.
        """
        log, since = self._worker.log, max(1, self._incarnation.since)
        devices = about(log.run, "device", SHARED)
        own, end = (devices, *subjects_of(log.run, (WorkerLost,))), await log.position()
        newest = await log.last(devices)
        if newest is not None and newest.position < since:
            self._apply(newest)  # for its position: run.resumed, which is read next, ends what it says
        for kind in NEWEST:
            if (newest := await log.last(of_type(log.run, type_of(kind)))) is not None:
                self._apply(newest)
        async for recorded in log.read(since, own):
            if recorded.position > end:
                break
            self._apply(recorded)
        async with Follower(log, end + 1, (devices, *subjects_of(log.run, FOLDED))) as self._follower:
            yield self

    async def want(self) -> None:
        """Ask for the trainer's turn, before anything else is known of the run."""
        request = DeviceWanted(worker=self._worker.id, incarnation=self._incarnation.number)
        while not await self._append(request):
            await self._read()

    async def take(self) -> bool:
        """Hold the devices, as soon as it is the worker's turn and the other side has released them.

        Returns at once if the worker holds them. Return False if the run ends before. Raises DeadlineExceeded if the
        other side does not release them.
        """
        since = time.monotonic()
        while not self._turns.holds(self._worker.id, self._number):
            if self._over:
                return False
            if self._turns.turn is not self._side:
                since = time.monotonic()
            elif (waited := time.monotonic() - since) > self._deadline_s:
                raise DeadlineExceeded(
                    f"waited {waited:.0f} s for {', '.join(self._turns.others)} to release the devices"
                )
            if self._turns.may_take(self._worker.id, self._side) and not self._earlier_runs():
                await self._append_taken(time.monotonic() - since)
            await self._read()
        if self._rests:
            await self._part.wake()
            self._rests = False
        return True

    async def _append_taken(self, waited_s: float) -> None:
        """Try to take the devices. They are held when the event is read from the log."""
        taken = DeviceTaken(
            worker=self._worker.id,
            side=self._side,
            number=self._number,
            incarnation=self._incarnation.number,
            pid=os.getpid(),
            node=socket.gethostname(),
            seconds=waited_s,
        )
        await self._append(taken)

    def _earlier_runs(self) -> bool:
        """Whether the process of an earlier trainer still runs. It is killed before the next one is started."""
        earlier = (holder.pid for holder in self._turns.holders.values() if holder.side is Side.TRAINER)
        return any(pid != os.getpid() and runs(pid) for pid in earlier)

    async def _append(self, event: Event) -> bool:
        """Append, fenced on the devices' events that are read. Return False if another worker was first."""
        fence = Fence(about(self._worker.log.run, "device", SHARED), self._turns.position)
        with suppress(Conflict):
            await self._worker.append_fenced(event, fence)
            return True
        return False

    async def release(self) -> None:
        """Give the devices back, after the part's memory. Does nothing if the worker does not hold them."""
        if not self._turns.holds(self._worker.id, self._number):
            return
        begun = time.perf_counter()
        self._rests = True
        await self._part.rest()
        released = DeviceReleased(
            worker=self._worker.id,
            side=self._side,
            number=self._number,
            seconds=time.perf_counter() - begun,
        )
        await self._worker.append_fenced(released)
        self._number += 1

    async def called(self) -> None:
        """Return when the worker holds the devices although the other side has the turn."""
        while not self._turns.must_release(self._worker.id):
            await self._read()

    async def _read(self) -> None:
        assert self._follower is not None, "enter `following` first"
        for recorded in await self._follower.next(LOOK_S):
            self._apply(recorded)

    def _apply(self, recorded: Recorded) -> None:
        self._turns.apply(recorded)
        self._over = self._worker.is_over(self._over, recorded.envelope.event)
