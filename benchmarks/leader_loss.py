"""Measure how long a cluster that lost the leader of a log acks nothing, through our log and through nats-py alone.

Each has three rounds, in turns, on one cluster of three nodes. A round kills the node that leads with SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import nats
import nats.errors
from nats.js.api import StreamConfig

from benchmarks.figure import Better, Figure
from schemas.envelope import enclose
from schemas.rewards import RewardAssigned
from storage.jetstream.log import JetStreamLog
from storage.log import once
from tests.storage.nats_cluster import NatsCluster

ROUNDS = 3
RUN, BARE = "bench", "SLIME_bare"
ASK_S = 0.2
DEADLINE_S = 60.0


def measure(rounds: int = ROUNDS) -> list[Figure]:
    """Return medians over the same number of kills for both, by turns, on one cluster of three nodes."""
    with tempfile.TemporaryDirectory() as folder:
        ours, bare = asyncio.run(_measure(Path(folder), rounds))
    note = f"seconds of each: {_list(ours)}; nats-py alone {_list(bare)}. The server waits 4 to 9 s for a silent leader"
    loss = statistics.median(ours)
    return [
        Figure(name="leader of a cluster lost, to the next ack", value=loss, unit="s", better=Better.LOWER, note=note),
        Figure(
            name="the same / nats-py alone",
            value=loss / statistics.median(bare),
            unit="x",
            target=1.5,
            better=Better.LOWER,
            note="elections take different times",
        ),
    ]


def _list(seconds: list[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in seconds)


async def _measure(folder: Path, rounds: int) -> tuple[list[float], list[float]]:
    ours, bare = list[float](), list[float]()
    async with await NatsCluster.start(folder) as cluster:
        log = await JetStreamLog.open(cluster.url, RUN, replicas=3, on_wait=lambda _: None)
        client = await nats.connect(
            cluster.urls, max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=_expected
        )
        jetstream = client.jetstream()
        await jetstream.add_stream(StreamConfig(name=BARE, subjects=["bare"], num_replicas=3))
        numbers = iter(range(1_000_000))

        async def append() -> None:
            reward = RewardAssigned(sample=f"s{next(numbers)}", group="g", value=1.0, grader="g", grader_digest="")
            await log.append([once(enclose(RUN, reward, at=time.time_ns(), producer="bench"))])

        async def publish() -> None:
            while True:
                with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
                    answer = await client.request("bare", b"x", timeout=ASK_S)
                    if b'"error"' not in answer.data:
                        return
                await asyncio.sleep(0.05)

        for _ in range(rounds):
            ours.append(await _lost(cluster, RUN, append))
            bare.append(await _lost(cluster, "bare", publish))
        await client.close()
        await log.close()
    return ours, bare


async def _expected(error: Exception) -> None:
    """Ignore the loss of a connection to a killed server."""


async def _lost(cluster: NatsCluster, run: str, append: Callable[[], Awaitable[None]]) -> float:
    """Kill the leader, and return the seconds to the next ack."""
    await append()
    leader = await cluster.leader(run)
    await cluster.kill(leader)
    begun = time.perf_counter()
    async with asyncio.timeout(DEADLINE_S):
        await append()
    seconds = time.perf_counter() - begun
    await cluster.restart(leader)
    await asyncio.sleep(2)  # until the node has caught up
    return seconds
