"""Test what a cluster adds: the log continues while a node is gone, and no acked event is lost with it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import ImpossibleCombination, StorageError
from schemas.subjects import about, every_event, of_type
from storage.jetstream.log import JetStreamLog
from storage.jetstream.stream import Stream
from storage.log import Fence
from storage.nats.server import NatsServer
from tests.storage.log.appends import chunk, everything, reward
from tests.storage.nats_cluster import NatsCluster
from tests.storage.waiting import until

WITHIN_S = 120


@pytest.fixture
async def own(tmp_path: Path) -> AsyncIterator[NatsCluster]:
    """A cluster whose nodes the test may kill."""
    async with await NatsCluster.start(tmp_path / "cluster") as cluster:
        yield cluster


class Traffic:
    """Writers, a follower and a taker on one log, each with a connection of its own, until `finish`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.acked: dict[str, list[int]] = {}
        self.followed: list[int] = []
        self.taken: set[int] = set()
        self._logs: list[JetStreamLog] = []
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        self._logs = [await JetStreamLog.open(self.url, "r", replicas=3, retry_s=WITHIN_S) for _ in range(4)]
        jobs = (self._write(0), self._write(1), self._follow(), self._take())
        self._tasks = [asyncio.create_task(job) for job in jobs]

    async def _write(self, writer: int) -> None:
        log, number = self._logs[writer], 0
        while not self._stop.is_set():
            sample = f"w{writer}-{number}"
            fence = Fence(about("r", "rollout", sample), 0) if number % 2 else None
            self.acked[sample] = await log.append([chunk(log, sample, i, fence) for i in range(3)])
            number += 1

    async def _follow(self) -> None:
        async for recorded in self._logs[2].read(follow=True):
            self.followed.append(recorded.position)

    async def _take(self) -> None:
        taker = await self._logs[3].consume("q", of_type("r", "rollout.progressed"), lease_s=5)
        while True:
            for delivery in await taker.take(64, 1.0):
                self.taken.add(delivery.recorded.position)
                await delivery.done()

    async def written(self, more: int) -> None:
        """Until `more` further appends are acked."""
        goal = len(self.acked) + more
        while len(self.acked) < goal:
            for task in self._tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.02)

    async def finish(self) -> JetStreamLog:
        """Stop the writers, let follower and taker come to the end; an open log."""
        self._stop.set()
        await asyncio.gather(*self._tasks[:2])
        end = await self._logs[0].position()
        await until(lambda: len(self.followed) >= end and len(self.taken) >= end)
        for task in self._tasks[2:]:
            task.cancel()
        await asyncio.gather(*self._tasks[2:], return_exceptions=True)
        for log in self._logs[1:]:
            await log.close()
        return self._logs[0]


async def _check(traffic: Traffic, log: JetStreamLog) -> None:
    stored = await everything(log)
    where = {recorded.position: recorded.envelope.event for recorded in stored}
    assert traffic.followed == sorted(where) == list(range(1, len(stored) + 1))
    assert traffic.taken == set(where)
    for sample, positions in traffic.acked.items():
        moved = [(where[p].entity(), where[p].start) for p in positions]  # type: ignore[attr-defined]
        assert moved == [(sample, i) for i in range(3)]
    assert len(traffic.acked) * 3 == len(stored) == len({recorded.envelope.id for recorded in stored})


async def test_nothing_acked_is_lost_and_everything_goes_on_while_nodes_are_killed(own: NatsCluster) -> None:
    """First the leader, then the node that comes after it: each is down for a while and catches up."""
    traffic = Traffic(own.url)
    async with asyncio.timeout(WITHIN_S):
        await traffic.begin()
        await traffic.written(20)
        leader = await own.leader("r")
        for node in (leader, (leader + 1) % 3):
            await own.kill(node)
            await traffic.written(20)
            await own.restart(node)
            await traffic.written(20)
        log = await traffic.finish()
    await _check(traffic, log)
    await log.close()


async def test_without_a_majority_it_waits_and_says_so(own: NatsCluster) -> None:
    notices: list[str] = []
    log = await JetStreamLog.open(own.url, "r", replicas=3, retry_s=WITHIN_S, on_wait=notices.append)
    await log.append([reward(log, "a")])
    for node in (0, 1, 2):
        await own.kill(node)
    appending = asyncio.create_task(log.append([reward(log, "b")]))
    reading = asyncio.create_task(everything(log))
    await until(lambda: any(f"waiting for NATS at {own.url}" in line for line in notices))
    assert not appending.done()
    assert not reading.done()
    async with asyncio.timeout(WITHIN_S):
        await asyncio.gather(*(own.restart(node) for node in (0, 1, 2)))
        assert await appending == [2]
        assert len(await reading) in (1, 2)
    await log.close()


async def test_what_a_node_that_has_just_started_says_of_the_end_is_not_believed(
    cluster: NatsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any replica may answer for the whole stream then, and does not know yet what was acked."""
    log = await JetStreamLog.open(cluster.url, "end", replicas=3)
    assert await log.position() == 0
    await log.append([reward(log, "a")])

    async def behind(*_: Any) -> Any:
        return {"state": {"last_seq": 0}}

    monkeypatch.setattr(Stream, "info", behind)
    assert await log.position() == 1
    await log.close()


async def test_what_another_node_acked_is_seen_at_once(cluster: NatsCluster) -> None:
    """Each writer is on another node than its reader, whose own replica may lag behind."""
    logs = [await JetStreamLog.open(url, "seen", replicas=3) for url in cluster.urls]
    for i in range(60):
        writer, reader = logs[i % 3], logs[(i + 1) % 3]
        (position,) = await writer.append([chunk(writer, "a", i)])
        last = await reader.last(about("seen", "rollout", "a"))
        assert last is not None
        assert last.position == position == await reader.position()
        assert [r.position for r in await everything(reader, position)] == [position]
        assert [r.position for r in await everything(reader, position, every_event("seen"))] == [position]
    for log in logs:
        await log.close()


async def test_a_lagging_replica_is_asked_again(cluster: NatsCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    log = await JetStreamLog.open(cluster.url, "lag", replicas=3)
    await log.append([reward(log, f"s{i}") for i in range(5)])
    direct_get, behind = log.connection.direct_get, [2, 0, 0]

    async def lagging(stream: str, body: dict[str, object]) -> list[object]:
        answer = await direct_get(stream, body)
        return answer[: behind.pop(0)] if behind else answer

    monkeypatch.setattr(log.connection, "direct_get", lagging)
    assert [r.position for r in await everything(log)] == [1, 2, 3, 4, 5]
    assert behind == []
    await log.close()


async def test_a_cluster_starts_again_on_its_folder(tmp_path: Path) -> None:
    async with await NatsCluster.start(tmp_path) as cluster:
        log = await JetStreamLog.open(cluster.url, "r", replicas=3)
        await log.append([reward(log, "a")])
        await log.close()
    async with await NatsCluster.start(tmp_path) as again:
        assert again.urls == cluster.urls
        log = await JetStreamLog.open(again.url, "r", create=False)
        assert await log.append([reward(log, "a"), reward(log, "b")]) == [1, 2]
        await log.close()
    with pytest.raises(StorageError, match="a cluster of 3 nodes, not 5"):
        await NatsCluster.start(tmp_path, nodes=5)


async def test_replicas_need_a_cluster(server: NatsServer) -> None:
    with pytest.raises(ImpossibleCombination, match="--nats-replicas 3 needs a cluster"):
        await JetStreamLog.open(server.url, "three", replicas=3)


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_minute_without_any_node(own: NatsCluster, number: signal.Signals) -> None:
    traffic = Traffic(own.url)
    async with asyncio.timeout(4 * WITHIN_S):
        await traffic.begin()
        await traffic.written(20)
        for node in own.nodes:
            node.signal(number)
        await asyncio.sleep(60)
        if number is signal.SIGKILL:
            await asyncio.gather(*(own.restart(node) for node in (0, 1, 2)))
        for node in own.nodes:
            node.signal(signal.SIGCONT)
        await traffic.written(20)
        log = await traffic.finish()
    await _check(traffic, log)
    await log.close()
