"""Measure the log on a real server with `sync_interval: always`: `python -m benchmarks.append`.

Every append is on disk before it counts. Rollouts are `rollout.completed` with 4,096 tokens and log-probs (33 KB).
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import nats
import numpy as np

from schemas.arrays import pack_log_probs, pack_tokens
from schemas.envelope import enclose
from schemas.event import Event
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted, StopReason, WeightSpan
from schemas.subjects import about, of_type
from storage.group_commit import GroupCommit
from storage.jetstream.log import JetStreamLog
from storage.log import Append, Fence
from storage.nats.server import NatsServer

TOKENS = 4096


@dataclass(frozen=True)
class Figures:
    """Events per second, milliseconds, and the machine's load (1-minute average) before and after."""

    rollouts_per_s: float
    rollouts_in_batches_per_s: float
    bare_rollouts_per_s: float
    rewards_per_s: float
    read_per_s: float
    read_rollouts_per_s: float
    take_per_s: float
    append_ms: float
    follow_ms: float
    load: tuple[float, float]


def rollout(index: int) -> RolloutCompleted:
    """Return a finished rollout of TOKENS tokens."""
    rng = np.random.default_rng(index)
    return RolloutCompleted(
        sample=f"s{index}",
        group=f"g{index // 8}",
        attempt=0,
        start=0,
        length=TOKENS,
        prompt_length=100,
        stop=StopReason.LENGTH,
        text="",
        spans=(WeightSpan(0, TOKENS, 1),),
        digest="0" * 64,
        engine="e",
        tokens=pack_tokens(rng.integers(0, 150_000, TOKENS)),
        log_probs=pack_log_probs(-rng.random(TOKENS)),
    )


def reward(index: int) -> RewardAssigned:
    """Return a small event."""
    return RewardAssigned(sample=f"s{index}", group="g", value=1.0, grader="math", grader_digest="0" * 64)


def fenced(run: str, event: Event) -> Append:
    """Return an append with the fence of an engine or grader: the sample has no event of that noun yet."""
    noun = "rollout" if isinstance(event, RolloutCompleted) else "reward"
    fence = Fence(about(run, noun, event.entity()), 0)
    return Append(enclose(run, event, at=time.time_ns(), producer="bench"), fence)


async def appended_per_s(log: JetStreamLog, events: list[Append], callers: int) -> float:
    """Measure group commit, from `callers` tasks that each wait for their append before the next."""
    waiting = iter(events)

    async def call(commit: GroupCommit) -> None:
        for append in waiting:
            await commit.append([append])

    begin = time.perf_counter()
    async with GroupCommit(log) as commit:
        await asyncio.gather(*(call(commit) for _ in range(callers)))
    return len(events) / (time.perf_counter() - begin)


async def batches_per_s(log: JetStreamLog, events: list[Append], size: int) -> float:
    """Measure one caller with `size` events in each call."""
    begin = time.perf_counter()
    for i in range(0, len(events), size):
        await log.append(events[i : i + size])
    return len(events) / (time.perf_counter() - begin)


async def bare_per_s(url: str, events: list[Append], size: int) -> float:
    """Measure the same batches with nats-py alone, encoded before: the limit of the server."""
    client = await nats.connect(url)
    encoded = [append.encoded() for append in events]
    begin = time.perf_counter()
    for i in range(0, len(events), size):
        part, batch = range(i, min(i + size, len(events))), {"Nats-Batch-Id": f"bare-{i}"}
        for number, event in enumerate(part, 1):
            envelope = events[event].envelope
            headers = {"Nats-Msg-Id": envelope.id, **batch, "Nats-Batch-Sequence": str(number)}
            headers["Nats-Expected-Last-Subject-Sequence"] = "0"
            if event < part[-1]:
                await client.publish(envelope.subject, encoded[event], headers=headers)
                continue
            commit = {**headers, "Nats-Batch-Commit": "1"}
            ack = await client.request(envelope.subject, encoded[event], headers=commit, timeout=60)
            if b'"error"' in ack.data:
                raise AssertionError(ack.data.decode())
    seconds = time.perf_counter() - begin
    await client.close()
    return len(events) / seconds


async def read_per_s(log: JetStreamLog, subject: str) -> float:
    """Measure reading and decoding all events of a filter."""
    begin, count = time.perf_counter(), 0
    async for _ in log.read(1, subject):
        count += 1
    return count / (time.perf_counter() - begin)


async def taken_per_s(log: JetStreamLog, subject: str, count: int) -> float:
    """Measure take and done of a competing consumer."""
    taker = await log.consume("bench", subject)
    begin, done = time.perf_counter(), 0
    while done < count:
        for delivery in await taker.take(256, 1.0):
            await delivery.done()
            done += 1
    await taker.close()
    return done / (time.perf_counter() - begin)


async def latencies_ms(log: JetStreamLog, first: int) -> tuple[float, float]:
    """Return the median time of one append alone, and of an append until a follower has it."""
    times: list[float] = []
    arrived: asyncio.Queue[float] = asyncio.Queue()

    async def follow() -> None:
        async for _ in log.read(await log.position() + 1, follow=True):
            arrived.put_nowait(time.perf_counter())

    follower = asyncio.create_task(follow())
    await asyncio.sleep(0.2)
    follows: list[float] = []
    for i in range(100):
        begin = time.perf_counter()
        await log.append([fenced(log.run, reward(first + i))])
        times.append(time.perf_counter() - begin)
        follows.append(await arrived.get() - begin)
        await asyncio.sleep(0.002)
    follower.cancel()
    await asyncio.gather(follower, return_exceptions=True)
    return 1000 * statistics.median(times), 1000 * statistics.median(follows)


async def measure(folder: Path, *, rollouts: int = 3000, rewards: int = 30_000) -> Figures:
    """Measure all figures on a new server in `folder`."""
    before = os.getloadavg()[0]
    async with await NatsServer.start(folder) as server:
        log = await JetStreamLog.open(server.url, "bench")
        server.stage_in_memory()
        first = [fenced("bench", rollout(i)) for i in range(rollouts)]
        second = [fenced("bench", rollout(rollouts + i)) for i in range(rollouts)]
        third = [fenced("bench", rollout(2 * rollouts + i)) for i in range(rollouts)]
        small = [fenced("bench", reward(i)) for i in range(rewards)]
        figures = Figures(
            rollouts_per_s=await appended_per_s(log, first, callers=256),
            rollouts_in_batches_per_s=await batches_per_s(log, second, 100),
            bare_rollouts_per_s=await bare_per_s(server.url, third, 100),
            rewards_per_s=await batches_per_s(log, small, 500),
            read_per_s=await read_per_s(log, of_type("bench", "reward.assigned")),
            read_rollouts_per_s=await read_per_s(log, of_type("bench", "rollout.completed")),
            take_per_s=await taken_per_s(log, of_type("bench", "reward.assigned"), rewards),
            append_ms=0.0,
            follow_ms=0.0,
            load=(before, os.getloadavg()[0]),
        )
        append_ms, follow_ms = await latencies_ms(log, 10 * rewards)
        await log.close()
    return Figures(**(vars(figures) | {"append_ms": append_ms, "follow_ms": follow_ms}))


def main() -> None:
    """Print a line for each figure."""
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(measure(Path(folder)))
    lines = (
        (f"durable append, {TOKENS} tokens each, 256 callers, group commit", figures.rollouts_per_s, "/s"),
        (f"durable append, {TOKENS} tokens each, 100 a call", figures.rollouts_in_batches_per_s, "/s"),
        (f"durable append, {TOKENS} tokens each, 100 a call, nats-py alone", figures.bare_rollouts_per_s, "/s"),
        ("durable append, small events, 500 a call", figures.rewards_per_s, "/s"),
        ("read and decode, small events", figures.read_per_s, "/s"),
        (f"read and decode, {TOKENS} tokens each", figures.read_rollouts_per_s, "/s"),
        ("take and done, small events", figures.take_per_s, "/s"),
        ("one durable append alone, median", figures.append_ms, "ms"),
        ("append to follower, median", figures.follow_ms, "ms"),
    )
    for name, value, unit in lines:
        print(f"{name:60} {value:10,.1f} {unit}")
    print(f"{'load of the machine, before and after':60} {figures.load[0]:.1f} {figures.load[1]:.1f}")


if __name__ == "__main__":
    main()
