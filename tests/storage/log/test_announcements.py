"""Test followers without a consumer: what is announced, what a lost, forged or refused announcement costs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from schemas import subjects
from schemas.registry import ANNOUNCED, BY_TYPE
from schemas.subjects import about, announced_inbox, announcement, of_type, stream_name
from storage.jetstream import announcements
from storage.jetstream import log as jetstream_log
from storage.jetstream.connection import Connection
from storage.jetstream.log import JetStreamLog
from storage.jetstream.stream import Stored, Stream
from storage.log import Recorded
from storage.nats.server import NatsServer
from tests.storage.log.appends import published, reward
from tests.storage.log.conftest import Backend, Open

DEADLINE_S = 30.0
Pair = tuple[JetStreamLog, JetStreamLog]


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Backend:
    return Backend(request.getfixturevalue("server").url)


@pytest.fixture
async def pair(opened: Open) -> tuple[JetStreamLog, JetStreamLog]:
    """A writer's and a reader's log."""
    writer, reader = await opened(), await opened()
    assert isinstance(writer, JetStreamLog)
    assert isinstance(reader, JetStreamLog)
    return writer, reader


async def _consumers(log: JetStreamLog) -> int:
    info = await log.connection.api(f"STREAM.INFO.{stream_name(log.run)}")
    return int(info["state"]["consumer_count"])


@contextlib.asynccontextmanager
async def _following(log: JetStreamLog, subject: str) -> AsyncIterator[asyncio.Queue[Recorded]]:
    """Follow in a task; the value gets the events."""
    arrived: asyncio.Queue[Recorded] = asyncio.Queue()

    async def follow() -> None:
        async with contextlib.aclosing(log.read(1, subject, follow=True)) as events:  # type: ignore[type-var]
            async for recorded in events:
                arrived.put_nowait(recorded)

    task = asyncio.create_task(follow())
    try:
        yield arrived
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _next(arrived: asyncio.Queue[Recorded], seconds: float = DEADLINE_S) -> int:
    async with asyncio.timeout(seconds):
        return (await arrived.get()).position


def test_which_filters_are_announced() -> None:
    """A filter is followed by announcements only if each type that it matches is announced."""
    assert set(BY_TYPE) > ANNOUNCED
    assert announced_inbox("r", of_type("r", "weights.published")) == "slime.r.announced.weights.published"
    assert announced_inbox("r", about("r", "run", "run")) == "slime.r.announced.run.*"
    assert announced_inbox("r", about("r", "weights", "v1")) is None  # weights.activated is not announced
    assert announced_inbox("r", of_type("r", "worker.lost")) is None
    assert announced_inbox("r", "slime.r.>") is None
    assert announced_inbox("r", of_type("r", "no.such")) is None
    for event_type in ANNOUNCED:
        sent = announcement("r", f"slime.r.{event_type}.entity")
        assert subjects.matches(f"{announced_inbox('r', of_type('r', event_type))}.*", sent)


async def test_followers_of_announced_events_have_no_consumer(pair: Pair) -> None:
    """Every event arrives, in order and at once: not with the look that follows seconds later."""
    writer, reader = pair
    positions = await writer.append([published(writer, 0)])
    async with _following(reader, of_type(writer.run, "weights.published")) as arrived:
        assert await _next(arrived) == positions[0]
        for version in range(1, 20):
            [_, position] = await writer.append([reward(writer, f"s{version}"), published(writer, version)])
            assert await _next(arrived, announcements.LOOK_S / 2) == position
        assert await _consumers(reader) == 0
    async with _following(reader, of_type(writer.run, "reward.assigned")) as arrived:
        await _next(arrived)
        for _ in range(19 - 1):
            await _next(arrived)
        async with asyncio.timeout(DEADLINE_S):
            while await _consumers(reader) != 1:  # noqa: ASYNC110  the state of a server
                await asyncio.sleep(0.05)


async def test_an_event_that_nobody_announced_is_found_later(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer may be killed before it announces what it has stored."""
    monkeypatch.setattr(announcements, "LOOK_S", 0.2)

    async def silent(*_: object) -> None:
        """Announce nothing."""

    monkeypatch.setattr(jetstream_log, "announce", silent)
    writer, reader = pair
    async with _following(reader, of_type(writer.run, "weights.published")) as arrived:
        for version in range(3):
            [position] = await writer.append([published(writer, version)])
            assert await _next(arrived) == position


async def test_a_replica_that_lags_delays_no_event(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A glance at a replica may find nothing yet: then the leader is asked, and not the next announcement awaited."""
    writer, reader = pair

    async def lagging(*_: object) -> list[Stored]:
        return []

    monkeypatch.setattr(Stream, "glance", lagging)
    async with _following(reader, of_type(writer.run, "weights.published")) as arrived:
        for version in range(3):
            [position] = await writer.append([published(writer, version)])
            assert await _next(arrived, announcements.LOOK_S / 2) == position


async def test_a_repeated_append_is_announced_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that lost the answer, or its life, repeats the append: then the first may not have been announced."""
    writer, reader = pair
    announce, append = jetstream_log.announce, published(writer, 1)
    async with _following(reader, of_type(writer.run, "weights.published")) as arrived:
        await writer.append([published(writer, 0)])
        await _next(arrived)

        async def silent(*_: object) -> None:
            """Announce nothing."""

        monkeypatch.setattr(jetstream_log, "announce", silent)
        [position] = await writer.append([append])
        monkeypatch.setattr(jetstream_log, "announce", announce)
        assert await writer.append([append]) == [position]
        assert await _next(arrived, announcements.LOOK_S / 2) == position


async def test_announcements_of_nothing_cost_a_look(pair: Pair) -> None:
    """Forged, repeated and malformed announcements deliver nothing, and the next event arrives."""
    writer, reader = pair
    async with _following(reader, of_type(writer.run, "weights.published")) as arrived:
        await writer.append([published(writer, 0)])
        await _next(arrived)
        for payload in (b"", b"\xff" * 100_000, b"{}", (3).to_bytes(8), (10**6).to_bytes(8)):
            await writer.connection.publish(f"slime.{writer.run}.announced.weights.published.v1", payload)
        await asyncio.sleep(0.3)
        assert arrived.empty()
        [position] = await writer.append([published(writer, 1)])
        assert await _next(arrived) == position


async def test_where_the_server_refuses_a_consumer_follows(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's own server may have other permissions."""
    writer, reader = pair
    check = Connection.check_receiving

    async def refuse(self: Connection, inbox: str) -> None:
        if ".announced." in inbox:
            raise self._denial("subscription", inbox)
        await check(self, inbox)

    monkeypatch.setattr(Connection, "check_receiving", refuse)
    async with _following(reader, of_type(writer.run, "weights.published")) as arrived:
        for version in range(3):
            [position] = await writer.append([published(writer, version)])
            assert await _next(arrived) == position
        assert await _consumers(reader) == 1


async def test_a_server_that_was_killed_is_followed_on(tmp_path: Path) -> None:
    """Events after a restart of the server arrive, each once."""
    server = await NatsServer.start(tmp_path / "nats")
    writer = await JetStreamLog.open(server.url, "r")
    reader = await JetStreamLog.open(server.url, "r")
    try:
        async with _following(reader, of_type("r", "weights.published")) as arrived:
            [first] = await writer.append([published(writer, 0)])
            assert await _next(arrived) == first
            os.kill(server.pid, signal.SIGKILL)
            await server.stop()
            server = await NatsServer.start(tmp_path / "nats", port=server.port)
            for version in (1, 2):
                [position] = await writer.append([published(writer, version)])
                assert await _next(arrived) == position
            assert arrived.empty()
    finally:
        await writer.close()
        await reader.close()
        await server.stop()
