"""Generations through the log: a call that is opened again continues where the log is."""

from __future__ import annotations

import asyncio

import pytest

from schemas.arrays import unpack
from schemas.errors import EngineError
from schemas.event import Event, Purpose
from schemas.rollouts import FailureKind, RolloutRequested
from serve_apps.rollouts.calls import Call, OpenCalls
from slime_events.core.run.participant import Participant
from storage.log import Append
from storage.memory_log import MemoryLog
from tests import made

FIRST = made.requested(purpose=Purpose.CALL, min_version=3)
SECOND = made.requested(purpose=Purpose.CALL, min_version=3, attempt=1)


class Client:
    """A client of one call, after a restart. events: in the log before."""

    def __init__(self, *events: Event) -> None:
        self.log = MemoryLog("r")
        self._events = events
        self._other = Participant(self.log, "other")
        self.calls = OpenCalls(Participant(self.log, "client"), self._append, unpack, attempts=3)

    async def _append(self, append: Append) -> None:
        await self.log.append([append])

    async def say(self, *events: Event) -> None:
        for event in events:
            await self.log.append([Append(self._other.enclose(event))])
            self.calls.apply(self.log.records[-1])

    async def open(self) -> Call:
        await self.say(*self._events)
        call = self.calls.open(FIRST)
        await self.calls.read(FIRST.sample)
        await asyncio.sleep(0.01)  # a retry, if there is one
        return call

    @property
    def attempts(self) -> list[int]:
        events = [record.envelope.event for record in self.log.records]
        return [event.attempt for event in events if isinstance(event, RolloutRequested)]


def failed(attempt: int, kind: FailureKind = FailureKind.ENGINE) -> Event:
    return made.failed(FIRST.sample, kind, attempt=attempt)


async def test_a_lost_attempt_is_requested_again_with_its_versions() -> None:
    client = Client(FIRST, failed(0))
    call = await client.open()
    assert client.attempts == [0, 1]
    assert call.request == SECOND


@pytest.mark.parametrize("kind", [FailureKind.ENGINE, FailureKind.INVALID, FailureKind.ABORTED])
async def test_an_attempt_in_progress_is_waited_for(kind: FailureKind) -> None:
    """Wait for any requester's attempt: no other competes with it."""
    client = Client(FIRST, failed(0, kind), SECOND)
    call = await client.open()
    assert client.attempts == [0, 1]
    assert not call.ended.done()
    await client.say(failed(1))
    await asyncio.sleep(0.01)
    assert client.attempts == [0, 1, 2]
    await client.say(failed(2))
    with pytest.raises(EngineError, match="failed"):
        await call.ended


async def test_the_end_of_a_later_attempt_is_the_call_s() -> None:
    client = Client(FIRST, failed(0), SECOND, made.completed(attempt=1, tokens=[5, 6], log_probs=[-0.5, -0.5]))
    call = await client.open()
    completed = await call.ended
    assert completed is not None
    assert call.trajectory.tokens.tolist() == [5, 6]
    assert client.attempts == [0, 1]
