"""Test how a gateway learns what engines have generated: by messages, and in the log for any that it missed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas.arrays import Array, unpack
from schemas.errors import AccessDenied, EngineError, StoreUnavailable
from schemas.event import Event, Purpose
from schemas.rollouts import (
    FailureKind,
    RolloutCompleted,
    RolloutFailed,
    RolloutProgressed,
    RolloutRequested,
    StopReason,
    WeightSpan,
)
from schemas.subjects import notifications
from serve_apps.rollouts.agents.run_log import RunLog
from serve_apps.rollouts.calls import Call
from slime_events.core.run.participant import Participant
from slime_events.core.tokens.trajectory import content_digest
from storage.jetstream.log import JetStreamLog
from storage.log import Append, EventLog, Recorded, once
from storage.memory_log import MemoryLog
from storage.nats.accounts import Access
from storage.open_log import own_server
from tests import made

RUN, SAMPLE, NEVER_S = "told", "c-s0", 3600.0
REQUEST = made.requested(SAMPLE, prompt=[1, 2], max_new_tokens=4, purpose=Purpose.CALL)
TOKENS = np.array([5, 6, 7], np.int32)
LOG_PROBS = np.array([-1.0, -2.0, -3.0], np.float32)


def chunk(start: int, end: int) -> RolloutProgressed:
    return made.progressed(SAMPLE, TOKENS[start:end], start=start, log_probs=LOG_PROBS[start:end])


def completed(start: int) -> RolloutCompleted:
    return made.completed(
        SAMPLE, TOKENS[start:], LOG_PROBS[start:], start=start, prompt_length=2, stop=StopReason.LENGTH,
        spans=(WeightSpan(0, len(TOKENS), 0),), digest=content_digest(TOKENS, LOG_PROBS),
    )  # fmt: skip


class Deaf(MemoryLog):
    """Its credentials may not hear."""

    def listen(
        self, name: str, on_event: Callable[[Recorded], None], *, early: bool = False
    ) -> AbstractAsyncContextManager[None]:
        raise AccessDenied("not with these credentials")


async def _as_is(event: Event) -> Event:
    return event


@contextlib.asynccontextmanager
async def called(log: EventLog, look_s: float) -> AsyncIterator[tuple[RunLog, Call, Participant]]:
    """A call under way at a gateway, and an engine that makes it."""
    async with RunLog(log, unpack, _as_is, attempts=1, look_s=look_s) as place:
        (at,) = await place.worker.append([REQUEST])
        yield place, await place.call(REQUEST, since=at - 1), Participant(log, "engine")


async def appended(engine: Participant, event: Event) -> Recorded:
    """An event of an engine's, in the log."""
    envelope = engine.enclose(event)
    append = once(envelope) if isinstance(event, RolloutCompleted) else Append(envelope)
    (at,) = await engine.log.append([append])
    return Recorded(at, envelope.subject, envelope, append.encoded())


async def ended(call: Call) -> list[int]:
    """Its tokens, once it has ended."""
    async with asyncio.timeout(20):
        assert await call.ended
    return [int(token) for token in call.trajectory.tokens]


async def test_what_is_told_is_there_at_once() -> None:
    async with called(MemoryLog(RUN), NEVER_S) as (place, call, engine):
        first = await appended(engine, chunk(0, 1))
        assert call.trajectory.length == 0
        await engine.log.notify(place.worker.id, [first])
        assert call.trajectory.length == 1
        await engine.log.notify(place.worker.id, [first])
        assert call.trajectory.length == 1, "a repeated message counts once"
        await engine.log.notify(place.worker.id, [await appended(engine, completed(1))])
        assert await ended(call) == TOKENS.tolist()


async def test_behind_what_was_not_told_the_log_is_read() -> None:
    """Which has all of it, in order."""
    async with called(MemoryLog(RUN), NEVER_S) as (place, call, engine):
        await appended(engine, chunk(0, 1))
        await engine.log.notify(place.worker.id, [await appended(engine, chunk(1, 2))])
        await engine.log.notify(place.worker.id, [await appended(engine, completed(2))])
        assert await ended(call) == TOKENS.tolist()


async def test_what_cannot_be_read_now_is_read_later() -> None:
    """A blob store that is away for a moment, while an engine tells."""
    log, away = MemoryLog(RUN), [True]

    def fetch(array: Array) -> Any:
        if away:
            away.pop()
            raise StoreUnavailable("the disk is gone")
        return unpack(array)

    async with RunLog(log, fetch, _as_is, attempts=1, look_s=NEVER_S) as place:
        (at,) = await place.worker.append([REQUEST])
        call, engine = await place.call(REQUEST, since=at - 1), Participant(log, "engine")
        await log.notify(place.worker.id, [await appended(engine, chunk(0, 1))])
        await log.notify(place.worker.id, [await appended(engine, completed(1))])
        assert await ended(call) == TOKENS.tolist()


@pytest.mark.parametrize(("log", "look_s"), [(MemoryLog(RUN), 0.01), (Deaf(RUN), NEVER_S)])
async def test_what_nobody_tells_is_looked_for(log: MemoryLog, look_s: float) -> None:
    """Whether it was lost on the way or may not be heard."""
    async with called(log, look_s) as (_, call, engine):
        await appended(engine, chunk(0, 1))
        await appended(engine, completed(1))
        assert await ended(call) == TOKENS.tolist()


def failed(attempt: int) -> RolloutFailed:
    return made.failed(SAMPLE, attempt=attempt, message="the input is too long")


async def test_a_generation_that_fails_each_time_is_asked_for_as_often_as_it_may_be() -> None:
    """Each attempt once, though the gateway reads no requests back."""
    log = MemoryLog(RUN)
    async with RunLog(log, unpack, _as_is, attempts=3, look_s=0.01) as place, asyncio.timeout(20):
        (at,) = await place.worker.append([REQUEST])
        call, engine = await place.call(REQUEST, since=at - 1), Participant(log, "engine")
        for attempt in range(3):
            while attempt not in (requested := await attempts(log)):  # noqa: ASYNC110 - the log has no such event
                await asyncio.sleep(0.01)
            await appended(engine, failed(attempt))
        with pytest.raises(EngineError, match="the input is too long"):
            await call.ended
    assert requested == [0, 1, 2]
    assert call.request.attempt == 2, "which a session that is sealed meanwhile ends"


async def test_what_was_asked_for_again_can_be_ended_before_an_engine_takes_it() -> None:
    log = MemoryLog(RUN)
    async with RunLog(log, unpack, _as_is, attempts=3, look_s=0.01) as place, asyncio.timeout(20):
        (at,) = await place.worker.append([REQUEST])
        call, engine = await place.call(REQUEST, since=at - 1), Participant(log, "engine")
        await appended(engine, failed(0))
        while await attempts(log) != [0, 1]:  # noqa: ASYNC110 - the log has no such event
            await asyncio.sleep(0.01)
        await place.calls.abort(call, "its session was sealed")
        assert await call.ended is None
    last = await log.last(f"slime.{RUN}.rollout.failed.{SAMPLE}")
    assert last is not None
    assert isinstance(last.envelope.event, RolloutFailed)
    assert (last.envelope.event.attempt, last.envelope.event.kind) == (1, FailureKind.ABORTED)


async def attempts(log: MemoryLog) -> list[int]:
    """That were requested."""
    events = [recorded.envelope.event async for recorded in log.read(1)]
    return [event.attempt for event in events if isinstance(event, RolloutRequested)]


@pytest.mark.parametrize("agents", [True, False])
async def test_a_gateway_hears_with_its_own_credentials(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, agents: bool
) -> None:
    """Hear in a run with agents. Where it may not, as on a server with older permissions, it warns and reads
    the log.
    """
    async with await own_server(tmp_path, RUN, agents=True) as server:
        roles = await JetStreamLog.open(server.address(Access.ROLES), RUN)
        own = await JetStreamLog.open(server.address(Access.GATEWAY if agents else Access.VIEWER), RUN, create=False)
        engine = Participant(roles, "engine")
        async with RunLog(own, unpack, _as_is, attempts=1, look_s=NEVER_S) as place:
            is_deaf = any("gets no notifications" in record.getMessage() for record in caplog.records)
            assert is_deaf is not agents
            (at,) = await engine.append([REQUEST])
            call = await place.call(REQUEST, since=at - 1)
            await appended(engine, chunk(0, 1))
            last = await appended(engine, completed(1))
            if agents:
                await roles.connection.publish(
                    f"{notifications(RUN, place.worker.id)}.event", b"nothing that can be read"
                )
                await roles.notify(place.worker.id, [last])
            assert await ended(call) == TOKENS.tolist()
        await own.close()
        await roles.close()


@pytest.mark.parametrize(("access", "may"), [(Access.GATEWAY, True), (Access.VIEWER, False)])
async def test_a_gateway_tells_early_with_its_own_credentials(tmp_path: Path, access: Access, may: bool) -> None:
    """And tells nothing else. Who may not, as on a server with older permissions, hears so at the second time."""
    async with await own_server(tmp_path, RUN, agents=True) as server:
        roles = await JetStreamLog.open(server.address(Access.ROLES), RUN)
        own = await JetStreamLog.open(server.address(access), RUN, create=False)
        envelope = Participant(own, "gateway").enclose(REQUEST)
        early_record = Recorded(0, envelope.subject, envelope, once(envelope).encoded())
        early, stored, some = list[Recorded](), list[Recorded](), asyncio.Event()

        def hear(recorded: Recorded) -> None:
            early.append(recorded)
            some.set()

        async with roles.listen("e", hear, early=True), roles.listen("e", stored.append):
            await own.notify("e", [early_record], early=True)
            await own.notify("e", [early_record])
            await own.end()
            if may:
                async with asyncio.timeout(20):
                    await some.wait()
            for is_early in (True, False):
                refused = contextlib.nullcontext() if may and is_early else pytest.raises(AccessDenied)
                with refused:
                    await own.notify("e", [early_record], early=is_early)
            await roles.connection.client.flush()
        assert bool(early) is may
        assert all(recorded == early_record for recorded in early)
        assert not stored
        await own.close()
        await roles.close()
