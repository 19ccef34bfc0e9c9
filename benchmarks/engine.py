"""Compare an engine in its deployment with the same engine alone: response tokens per second of the same requests.

Alone, requests go to `SglangEngine` directly. Deployed, the time runs from the append of `rollout.requested` on a
durable JetStream log to the last durable `rollout.completed`, through the worker of a Serve replica. Both have the same
number of requests in flight, and enough requests that the tenth of a second for the first one does not matter. Both use
one engine in one process by turns. Before each turn the weights are loaded again, which empties SGLang's prefix cache.
The worker does not grade.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.demo_model import demo_requests
from benchmarks.figure import Better, Figure
from schemas.arrays import pack_tokens
from schemas.errors import DeadlineExceeded
from schemas.rollouts import RolloutCompleted, RolloutRequested
from schemas.weights import WeightsActivated, WeightsPublished
from serve_apps.engines.engine import GenerateRequest
from serve_apps.engines.engine_weights import EngineWeights
from serve_apps.engines.sglang_engine import SglangEngine
from serve_apps.rollouts.rollout import ChunkRule
from serve_apps.rollouts.rollout_worker import EngineContext, RolloutWorker
from slime_events.core.config.engine import EngineSettings
from slime_events.core.run.participant import Participant
from storage.blobs import BlobStore
from storage.follow import Follower
from storage.group_commit import GroupCommit
from storage.jetstream.log import JetStreamLog
from storage.log import append_all, once
from storage.nats.server import NatsServer
from storage.payloads import fetch, offload_async
from storage.weights.files import open_checkpoint
from storage.weights.store import WeightStore

DEADLINE_S = 300.0


def measure(requests: int = 2048, turns: int = 3) -> list[Figure]:
    """Return the median ratio of neighbouring turns."""
    with tempfile.TemporaryDirectory() as folder:
        alone, deployed = asyncio.run(_measure(Path(folder), requests, turns))
    ratio = statistics.median(after / before for before, after in zip(alone, deployed, strict=True))
    return [
        Figure(
            name="engine deployed / alone",
            value=ratio,
            unit="x",
            target=0.9,
            better=Better.HIGHER,
            note=f"{statistics.median(deployed):.0f} against {statistics.median(alone):.0f} tok/s, {requests} requests",
        )
    ]


async def _measure(folder: Path, count: int, turns: int) -> tuple[list[float], list[float]]:
    settings, requests = demo_requests(folder, count)
    engine = SglangEngine(settings.engine)
    async with await NatsServer.start(folder / "nats") as server:
        log = await JetStreamLog.open(server.url, "bench")
        server.stage_in_memory()
        await engine.start(DEADLINE_S)
        try:
            bench = _Deployed(log, engine, folder, settings.engine)
            await bench.alone(requests[:64])  # warms the engine up
            alone, deployed = [], []
            for turn in range(turns):
                alone.append(await bench.alone(requests))
                deployed.append(await bench.deployed(requests, turn))
            return alone, deployed
        finally:
            await engine.stop()
            await log.close()


class _Deployed:
    """An engine, and a log to deploy it on."""

    def __init__(self, log: JetStreamLog, engine: SglangEngine, folder: Path, settings: EngineSettings) -> None:
        self._log, self._engine, self._settings = log, engine, settings
        self._blobs = BlobStore(str(folder / "blobs"))
        self._worker = Participant(log, "bench")
        store = WeightStore(str(folder / "weights"), base=settings.hf_checkpoint)
        tensors = [(name, t.dtype, t.shape, t.data) for name, t in open_checkpoint(settings.hf_checkpoint).items()]
        self._store, self._tensors = store, tensors

    async def alone(self, requests: list[GenerateRequest]) -> float:
        """Return tokens per second of the engine alone."""
        await self._engine.update_weights(self._settings.hf_checkpoint, self._engine.version + 1)
        room = asyncio.Semaphore(self._settings.sglang_server_concurrency)
        begun, before = time.perf_counter(), self._engine.tokens_generated
        await asyncio.gather(*(self._generate(request, room) for request in requests))
        return (self._engine.tokens_generated - before) / (time.perf_counter() - begun)

    async def _generate(self, request: GenerateRequest, room: asyncio.Semaphore) -> None:
        async with room:
            async for _ in self._engine.generate(request):
                pass

    async def deployed(self, requests: list[GenerateRequest], turn: int) -> float:
        """Return tokens per second from the first append to the last."""
        work = asyncio.create_task(self._work())
        try:
            async with asyncio.timeout(DEADLINE_S), Follower(self._log, await self._log.position() + 1) as follower:
                await self._activate(follower)
                return await self._roll_out(follower, requests, turn)
        except TimeoutError:
            raise DeadlineExceeded(f"{len(requests)} rollouts took more than {DEADLINE_S:.0f} s") from None
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _work(self) -> None:
        rule = ChunkRule(self._settings.chunk, self._settings.chunk_seconds)
        give, put = partial(fetch, blobs=self._blobs), partial(offload_async, blobs=self._blobs)
        async with GroupCommit(self._log) as commit:
            room = self._settings.sglang_server_concurrency
            weights = EngineWeights(self._worker, self._engine, commit)
            context = EngineContext(self._worker, self._engine, commit, give, put, weights, rule)
            rolling = RolloutWorker(context, room, take_limit=room)
            await rolling.run()

    async def _activate(self, follower: Follower) -> None:
        manifest = self._store.write(self._engine.version + 1, self._tensors, parent=None)
        url = self._store.folder(manifest.version, manifest.digest)
        published = WeightsPublished(
            version=manifest.version, parent=None, url=url, digest=manifest.digest, bytes=manifest.bytes
        )
        await self._worker.append([published])
        while not any(
            isinstance(event := recorded.envelope.event, WeightsActivated) and event.version == manifest.version
            for recorded in await follower.next(wait_s=1.0)
        ):
            pass

    async def _roll_out(self, follower: Follower, requests: list[GenerateRequest], turn: int) -> float:
        begun = time.perf_counter()
        envelopes = [self._worker.enclose(_requested(request, turn)) for request in requests]
        await append_all(self._log, [once(envelope) for envelope in envelopes])
        done = tokens = 0
        while done < len(requests):
            for recorded in await follower.next(wait_s=1.0):
                if isinstance(event := recorded.envelope.event, RolloutCompleted):
                    done, tokens = done + 1, tokens + event.length
        return tokens / (time.perf_counter() - begun)


def _requested(request: GenerateRequest, turn: int) -> RolloutRequested:
    group = f"g{turn}-{request.seed // 8}"
    index = request.seed % 8
    return RolloutRequested(
        sample=f"{group}-s{index}",
        group=group,
        index=index,
        prompt=pack_tokens(request.prompt),
        sampling=request.sampling,
        seed=request.seed,
    )
