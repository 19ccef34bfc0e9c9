"""Measure the cost of chunks of running rollouts: tokens per second with and without a chunk every 64 tokens.

The time runs from the durable append of `rollout.requested` to the last durable `rollout.completed`, through the worker
of a Serve replica, on a JetStream log. Turns with and without chunks alternate. The scripted engine yields tokens at
the pace of a busy GPU engine, on time even if the worker is busy, like an engine in its own process.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from benchmarks.figure import Better, Figure
from schemas.arrays import pack_tokens, unpack
from schemas.doc import doc
from schemas.event import Event
from schemas.rollouts import RolloutRequested, Sampling
from schemas.subjects import of_type
from schemas.weights import WeightsPublished
from serve_apps.engines.engine import Delta, GenerateRequest
from serve_apps.engines.engine_weights import EngineWeights
from serve_apps.rollouts.rollout import ChunkRule
from serve_apps.rollouts.rollout_worker import EngineContext, RolloutWorker
from slime_events.core.run.participant import Participant
from storage.follow import Follower
from storage.group_commit import GroupCommit
from storage.jetstream.log import JetStreamLog
from storage.log import EventLog, append_all, once
from storage.nats.server import NatsServer
from storage.weights.store import WeightStore
from tests.scripted_engine import Script, ScriptedEngine

CHUNK, NEVER = 64, 1 << 30
TARGET = 0.02
SECONDS_PER_DELTA, DELTA = 0.1, 8
"""Together 80 tokens per second and response."""
DEADLINE_S = 300.0


@dataclass(frozen=True, slots=True)
class Turn:
    """Results of a turn."""

    tokens_per_s: float
    cpu: Annotated[float, doc("CPU seconds of the worker's process")]
    chunks: Annotated[int, doc("Events in the log except requests and ends")]


class Punctual(ScriptedEngine):
    """Yields every delta on time, and continues to generate while its reader is busy."""

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        """See `Engine.generate`."""
        queue: asyncio.Queue[Delta] = asyncio.Queue()
        pump = asyncio.create_task(self._pump(super().generate(request), queue))
        try:
            finished = False
            while not finished:
                delta = await queue.get()
                finished = delta.finish is not None
                yield delta
        finally:
            pump.cancel()

    async def _pump(self, deltas: AsyncIterator[Delta], queue: asyncio.Queue[Delta]) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        async for delta in deltas:
            due += SECONDS_PER_DELTA
            await asyncio.sleep(due - loop.time())
            queue.put_nowait(delta)


def measure(responses: int = 64, length: int = 512, turns: int = 3) -> list[Figure]:
    """Return the share of tokens per second that chunks take, by medians."""
    with tempfile.TemporaryDirectory() as folder:
        results = asyncio.run(_measure(Path(folder), responses, length, turns))
    plain, chunked = results[::2], results[1::2]
    before = statistics.median(turn.tokens_per_s for turn in plain)
    after = statistics.median(turn.tokens_per_s for turn in chunked)
    cpu = statistics.median(turn.cpu for turn in chunked) - statistics.median(turn.cpu for turn in plain)
    return [
        Figure(
            name=f"chunks of {CHUNK} tokens, share of tokens/s",
            value=1 - after / before,
            unit="share",
            target=TARGET,
            better=Better.LOWER,
            note=f"{after:.0f} against {before:.0f} tok/s, {responses} responses of {length} tokens; worker CPU "
            f"{1e6 * cpu / max(chunked[0].chunks, 1):.0f} us a chunk",
        )
    ]


async def _measure(folder: Path, responses: int, length: int, turns: int) -> list[Turn]:
    async with await NatsServer.start(folder / "nats") as server:
        log = await JetStreamLog.open(server.url, "bench")
        engine = Punctual(Script(chunk=DELTA))
        await engine.start(1.0)
        try:
            await _publish(Participant(log, "bench"), folder)
            rules = [ChunkRule(NEVER, DEADLINE_S), ChunkRule(CHUNK, DEADLINE_S)] * turns
            return [await _turn(log, engine, rule, n, responses, length) for n, rule in enumerate(rules)]
        finally:
            await engine.stop()
            await log.close()


async def _publish(worker: Participant, folder: Path) -> None:
    store = WeightStore(str(folder / "weights"))
    manifest = store.write(0, [("w", "F32", (8,), b"\0" * 32)], parent=None)
    url = store.folder(0, manifest.digest)
    await worker.append(
        [WeightsPublished(version=0, parent=None, url=url, digest=manifest.digest, bytes=manifest.bytes)]
    )


async def _turn(
    log: EventLog, engine: ScriptedEngine, rule: ChunkRule, number: int, responses: int, length: int
) -> Turn:
    worker = Participant(log, "engine")
    start = await log.position() + 1
    async with GroupCommit(log) as commit:
        weights = EngineWeights(worker, engine, commit)
        rolling = RolloutWorker(EngineContext(worker, engine, commit, unpack, _inline, weights, rule), responses)
        work = asyncio.create_task(rolling.run())
        try:
            async with asyncio.timeout(DEADLINE_S):
                await _count(log, start, "weights.activated", 1)
                begun, cpu = time.perf_counter(), time.process_time()
                requests = [worker.enclose(_request(number, index, length)) for index in range(responses)]
                await append_all(log, [once(envelope) for envelope in requests])
                await _count(log, start, "rollout.completed", responses)
                seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
    return Turn(responses * length / seconds, cpu, await log.position() - start + 1 - 2 * responses)


async def _count(log: EventLog, start: int, kind: str, count: int) -> None:
    """Wait until the log has `count` events of a type."""
    async with Follower(log, start, of_type(log.run, kind)) as follower:
        while count > 0:
            count -= len(await follower.next(wait_s=1.0))


async def _inline(event: Event) -> Event:
    return event


def _request(turn: int, index: int, length: int) -> RolloutRequested:
    group = f"g{turn}-{index}"
    return RolloutRequested(
        sample=f"{group}-s0",
        group=group,
        index=0,
        prompt=pack_tokens([1, 2, 3]),
        sampling=Sampling(max_new_tokens=length),
        seed=index,
    )
