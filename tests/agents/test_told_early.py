"""Test a run's log as a gateway uses it: which engine gets a message, which fence is set, whose calls it reads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from schemas.arrays import unpack
from schemas.errors import AccessDenied, Conflict
from schemas.event import Event
from schemas.sessions import SessionOpened
from schemas.subjects import everything_about
from serve_apps.rollouts.agents.run_log import RunLog
from slime_events.core.run.participant import Participant
from storage.log import Fence, Recorded
from storage.memory_log import MemoryLog
from tests import made
from tests.agents.test_run_log import REQUEST, RUN, SAMPLE, appended, chunk, completed

OPENED = SessionOpened(sample="g-s0", attempt=0, group="g", sender="t", key="k", gateway="gw")
OTHER = msgspec.structs.replace(OPENED, gateway="other", attempt=1)
ABOUT = everything_about(RUN, "g-s0")


class Telling(MemoryLog):
    """Keep the early messages, and their recipients."""

    def __init__(self, *, may: bool = True) -> None:
        super().__init__(RUN)
        self.early, self.may = list[tuple[str, list[Recorded], int]](), may

    async def notify(self, listener: str, events: Sequence[Recorded], *, early: bool = False) -> None:
        assert early
        self.early.append((listener, list(events), len(self.records)))
        if not self.may:
            raise AccessDenied("not with these credentials")


async def as_is(event: Event) -> Event:
    return event


def place_of(log: MemoryLog, *, tells_early: bool = True) -> RunLog:
    return RunLog(log, unpack, as_is, attempts=1, look_s=0.01, tells_early=tells_early)


async def activated(log: MemoryLog, engine: str) -> None:
    await appended(Participant(log, "engine"), made.activated(engine=engine))


async def test_an_engine_is_told_of_requests_before_they_are_stored() -> None:
    log = Telling()
    await activated(log, "old")
    await activated(log, "new")
    async with place_of(log) as place:
        stored = await place.append([OPENED, REQUEST], Fence(ABOUT, 0))
        ((whom, events, before),) = log.early
        assert (whom, before) == ("new", 2)
        assert [(recorded.position, recorded.envelope.event, bool(recorded.data)) for recorded in events] == [
            (0, REQUEST, True)
        ]
        assert events[0].envelope == stored[1].envelope
        assert [(recorded.position, recorded.envelope.event, recorded.data) for recorded in stored] == [
            (3, OPENED, b""),
            (4, REQUEST, b""),
        ]
        await place.append([OPENED], Fence(ABOUT, 3))
        assert len(log.early) == 1, "there is no request in it"


async def test_the_engine_that_was_heard_last_is_told() -> None:
    log = Telling()
    await activated(log, "old")
    async with place_of(log) as place:
        place._on_notified(await appended(Participant(log, "engine"), chunk(0, 1)))
        await place.append([REQUEST], Fence(ABOUT, 0))
        assert [whom for whom, *_ in log.early] == ["e"]
        assert "agents' calls" in {task.get_name() for task in asyncio.all_tasks()}
    assert "agents' calls" not in {task.get_name() for task in asyncio.all_tasks()}


async def test_nobody_is_told_where_none_is_known_or_there_are_several() -> None:
    for engine, tells_early in (("", True), ("e", False)):
        log = Telling()
        if engine:
            await activated(log, engine)
        async with place_of(log, tells_early=tells_early) as place:
            await place.append([REQUEST], Fence(ABOUT, 0))
        assert log.early == []
    plain = Telling()
    await activated(plain, "e")
    async with RunLog(plain, unpack, as_is, attempts=1) as place:
        await place.append([REQUEST], Fence(ABOUT, 0))
    assert plain.early == [], "unless it is asked for"


async def test_who_may_not_tell_tries_once() -> None:
    log = Telling(may=False)
    await activated(log, "e")
    async with place_of(log) as place:
        await place.append([OPENED, REQUEST], Fence(ABOUT, 0))
        await place.append([OTHER, msgspec.structs.replace(REQUEST, sample="d-s0")], Fence(ABOUT, 2))
        assert len(log.early) == 1
        assert len(log.records) == 5


async def test_what_is_about_the_session_is_under_its_fence() -> None:
    log = MemoryLog(RUN)
    async with place_of(log) as place:
        await place.append([OPENED], Fence(ABOUT, 0))
        with pytest.raises(Conflict):
            await place.append([OTHER], Fence(ABOUT, 0))
        with pytest.raises(Conflict):
            await place.append([OTHER, REQUEST], Fence(ABOUT, 0))
        assert len(log.records) == 1, "all of it or nothing"
        await place.append([REQUEST], Fence(ABOUT, 1))
        assert [record.envelope.event for record in log.records] == [OPENED, REQUEST]


async def test_a_call_that_another_gateway_requested_is_read() -> None:
    log = MemoryLog(RUN)
    async with place_of(log) as place, asyncio.timeout(20):
        assert await place.read_call(SAMPLE) is None
        other = Participant(log, "gateway")
        await other.append([REQUEST])
        await appended(other, chunk(0, 1))
        call = await place.read_call(SAMPLE)
        assert call is not None
        assert (call.request, call.requested, call.trajectory.length) == (REQUEST, True, 1)
        await appended(other, completed(1))
        ended: Any = await call.ended
        assert ended.length == call.trajectory.length == 3
        place.calls.close(SAMPLE)
        assert (await place.read_call(SAMPLE)) is not None


async def test_a_gateway_without_calls_does_nothing() -> None:
    """And is there again for the next one."""
    log = MemoryLog(RUN)
    async with place_of(log) as place, asyncio.timeout(20):
        for sample in ("a-s0", "b-s0"):
            request = msgspec.structs.replace(REQUEST, sample=sample)
            (at,) = await place.worker.append([request])
            await place.call(request, since=at - 1)
            place.calls.close(sample)
            for _ in range(5):
                await asyncio.sleep(0.01)
