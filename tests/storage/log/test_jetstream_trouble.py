"""Test what only a real server can suffer: kills, restarts, damage, a full disk."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import (
    LogDamaged,
    LogUnavailable,
    NoSpace,
    RunNotFound,
    StorageError,
)
from schemas.subjects import about, every_event, stream_name
from storage.jetstream import connection, consumer, pull
from storage.jetstream import stream as stream_module
from storage.jetstream.log import JetStreamLog
from storage.jetstream.retry import Away
from storage.jetstream.stream import stream_config
from storage.log import EventLog, Fence
from storage.nats.server import NatsServer
from tests.storage.log.appends import chunk, everything, reward
from tests.storage.waiting import done_up_to, taken, until


@pytest.fixture
async def own(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """A server that the test may kill."""
    server = await NatsServer.start(tmp_path / "nats")
    yield server
    last = NatsServer.attach(tmp_path / "nats")
    if last is not None:
        await last.stop()


async def restart(server: NatsServer, number: signal.Signals, away_s: float = 0.0) -> NatsServer:
    server.signal(number)
    while server.alive:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    await asyncio.sleep(away_s)
    return await NatsServer.start(server.folder)


async def test_everything_is_there_after_a_restart(own: NatsServer) -> None:
    log = await JetStreamLog.open(own.url, "r")
    await log.append([reward(log, f"s{i}") for i in range(50)])
    before = await everything(log)
    taker = await log.consume("q", every_event("r"))
    for delivery in await taken(taker, 20):
        await delivery.done()
    await done_up_to(log, "q", 20)
    again = await restart(own, signal.SIGTERM)
    assert again.url == own.url
    assert await everything(log) == before
    assert await log.append([reward(log, "s7"), reward(log, "new")]) == [8, 51]
    assert await log.done_up_to("q") == 20
    assert [d.recorded.position for d in await taken(taker, 2)] == [21, 22]
    await taker.close()
    await log.close()


async def test_no_acked_event_is_lost_or_doubled_by_kills(own: NatsServer) -> None:
    """Let writers continue through three SIGKILLs of the server. Half of the calls are fenced, each is of
    three events.
    """
    log = await JetStreamLog.open(own.url, "r")
    own.stage_in_memory()
    acked: dict[str, list[int]] = {}
    stop = asyncio.Event()

    async def write(writer: int) -> None:
        number = 0
        while not stop.is_set():
            sample = f"w{writer}-{number}"
            fence = Fence(about("r", "rollout", sample), 0) if number % 2 else None
            acked[sample] = await log.append([chunk(log, sample, i, fence, tokens=200) for i in range(3)])
            number += 1

    async def written(more: int) -> None:
        goal = len(acked) + more
        await until(lambda: len(acked) >= goal)

    async def follow(seen: list[int]) -> None:
        async for recorded in log.read(follow=True):
            seen.append(recorded.position)

    seen: list[int] = []
    follower = asyncio.create_task(follow(seen))
    writers = [asyncio.create_task(write(i)) for i in range(4)]
    server = own
    for _ in range(3):
        await written(40)
        server = await restart(server, signal.SIGKILL, away_s=0.1)
    await written(40)
    stop.set()
    await asyncio.wait_for(asyncio.gather(*writers), 60)

    stored = await everything(log)
    where = {r.position: r.envelope for r in stored}
    assert len({e.id for e in where.values()}) == len(stored) == await log.position()
    for sample, positions in acked.items():
        assert positions == list(range(positions[0], positions[0] + 3))
        assert [(where[p].event.entity(), where[p].event.start) for p in positions] == [  # type: ignore[attr-defined]
            (sample, i) for i in range(3)
        ]
    assert len(acked) * 3 == len(stored)
    await until(lambda: len(seen) >= len(stored))
    assert seen == [r.position for r in stored]
    follower.cancel()
    await asyncio.gather(follower, return_exceptions=True)
    await log.close()


async def test_an_append_waits_for_a_server_that_is_away(own: NatsServer) -> None:
    notices: list[str] = []
    log = await JetStreamLog.open(own.url, "r", on_wait=notices.append)
    taker = await log.consume("q", every_event("r"))
    taking = asyncio.create_task(taker.take(1, 60))
    await own.stop()
    appending = asyncio.create_task(log.append([reward(log, "a")]))
    reading = asyncio.create_task(everything(log))
    await until(lambda: len(notices) >= 3)
    await asyncio.sleep(0.6)  # longer than the longest pause between two tries: each says it once
    assert [f"waiting for NATS at {own.url}" in line for line in notices] == [True] * 3
    assert not any(task.done() for task in (appending, reading, taking))
    await NatsServer.start(own.folder)
    async with asyncio.timeout(60):
        assert await appending == [1]
        await reading
        assert len(await taking) == 1
    await log.close()


async def test_an_append_under_way_is_tried_again_as_soon_as_the_server_is_back(
    own: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await JetStreamLog.open(own.url, "r")
    monkeypatch.setattr(connection, "QUIET_S", 60)
    own.signal(signal.SIGSTOP)
    appending = asyncio.create_task(log.append([reward(log, "a"), reward(log, "b")]))
    await asyncio.sleep(0.1)
    await restart(own, signal.SIGKILL)
    assert await asyncio.wait_for(appending, 20) == [1, 2]
    await log.close()


async def test_a_taker_goes_on_over_a_broken_connection(stream: JetStreamLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Continue at once when it is back, without waiting for silence or the end of the request."""
    monkeypatch.setattr(pull, "_SILENCE_S", 60)
    monkeypatch.setattr(consumer, "_REQUEST_S", 60)
    taker = await stream.consume("q", every_event(stream.run))
    taking = asyncio.create_task(taker.take(1, 60))
    await asyncio.sleep(0.1)
    await stream.connection.client.force_reconnect()
    await stream.append([reward(stream, "a")])
    assert len(await asyncio.wait_for(taking, 20)) == 1
    await taker.close()


async def test_retries_end(own: NatsServer) -> None:
    log = await JetStreamLog.open(own.url, "r", retry_s=0.3)
    await log.append([reward(log, "a")])
    await own.stop()
    with pytest.raises(LogUnavailable, match=r"did not complete the request within 0 s"):
        await log.append([reward(log, "b")])
    with pytest.raises(LogUnavailable):
        await everything(log)
    await log.close()
    with pytest.raises(LogUnavailable, match="no NATS server answered at"):
        await JetStreamLog.open(own.url, "r", deadline_s=0.3)


async def test_a_lost_ack_is_no_second_event(stream: JetStreamLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answer of the server to each append never arrives."""
    request = stream.connection.request
    lost: set[bytes] = set()

    async def lossy(subject: str, payload: bytes, **more: Any) -> Any:
        answer = await request(subject, payload, **more)
        if not subject.startswith("$JS") and payload not in lost:
            lost.add(payload)
            raise Away("lost")
        return answer

    monkeypatch.setattr(stream.connection, "request", lossy)
    assert await stream.append([reward(stream, "a")]) == [1]
    assert await stream.append([reward(stream, "b"), chunk(stream, "c", 0)]) == [2, 3]
    fence = Fence(about(stream.run, "rollout", "c"), 3)
    assert await stream.append([chunk(stream, "c", 4, fence), reward(stream, "d")]) == [4, 5]
    last = chunk(stream, "c", 8, Fence(fence.subject, 4))
    assert await stream.append([last]) == [6]
    assert not last.is_repeated, "its own bytes are stored, so its span is its own"
    assert len(lost) == 4
    assert await stream.position() == 6


async def test_an_event_is_known_again_after_the_duplicate_window(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "DUPLICATE_WINDOW_S", 0.1)
    log = await JetStreamLog.open(server.url, "window")
    await log.append([chunk(log, "a", 0), chunk(log, "a", 4), reward(log, "a")])
    await asyncio.sleep(0.5)
    fresh = await JetStreamLog.open(server.url, "window")
    assert await fresh.append([chunk(log, "a", 0)]) == [1]
    assert await fresh.append([reward(log, "b"), chunk(log, "a", 4), reward(log, "a")]) == [4, 2, 3]
    assert await fresh.position() == 4
    await log.close()
    await fresh.close()


async def test_a_hole_in_the_log_is_noticed(server: NatsServer) -> None:
    """In a stream that somebody has made so that events can be deleted."""
    opener = await JetStreamLog.open(server.url, "elsewhere")
    name = stream_name("hole")
    await opener.connection.api(f"STREAM.CREATE.{name}", stream_config("hole") | {"deny_delete": False})
    log = await JetStreamLog.open(server.url, "hole", create=False)
    await log.append([reward(log, f"s{i}") for i in range(5)])
    await opener.connection.api(f"STREAM.MSG.DELETE.{name}", {"seq": 3})
    with pytest.raises(LogDamaged, match="lacks position 3: the next is 4"):
        await everything(log)
    await opener.connection.api(f"STREAM.MSG.DELETE.{name}", {"seq": 5})
    with pytest.raises(LogDamaged, match="lacks position 5"):
        await everything(log, 5)
    with pytest.raises(StorageError, match="deny_delete is"):
        await JetStreamLog.open(server.url, "hole")
    for opened in (log, opener):
        await opened.close()


async def test_nothing_can_be_deleted(stream: JetStreamLog) -> None:
    await stream.append([reward(stream, "a")])
    name = stream_name(stream.run)
    for subject, body in ((f"STREAM.MSG.DELETE.{name}", {"seq": 1}), (f"STREAM.PURGE.{name}", {})):
        with pytest.raises(StorageError, match="JetStream error"):
            await stream.connection.api(subject, body)


async def test_a_log_of_an_earlier_version_takes_events_that_are_new_since(stream: JetStreamLog) -> None:
    name, entry = stream_name(stream.run), reward(stream, "a")
    config = (await stream.connection.api(f"STREAM.INFO.{name}"))["config"]
    old = [subject for subject in config["subjects"] if ".reward." not in subject]
    await stream.connection.api(f"STREAM.UPDATE.{name}", config | {"subjects": old})
    await stream.widen()
    await stream.widen()
    assert (await stream.connection.api(f"STREAM.INFO.{name}"))["config"] == config
    assert await stream.append([entry]) == [1]


async def test_a_run_that_is_not_there(server: NatsServer) -> None:
    with pytest.raises(RunNotFound, match="no log of run 'nobody'"):
        await JetStreamLog.open(server.url, "nobody", create=False)


async def test_a_full_disk_is_named(tmp_path: Path) -> None:
    async with await NatsServer.start(tmp_path / "nats", max_store_bytes=2 << 20) as server:
        log = await JetStreamLog.open(server.url, "r", retry_s=0.5)
        with pytest.raises(NoSpace, match="no room"):
            await _fill(log)
        stored = len(await everything(log))
        assert 5 < stored < 50
        await log.close()


async def _fill(log: EventLog) -> None:
    for i in range(100):
        await log.append([chunk(log, f"s{i}", 0, tokens=10_000)])
