"""The Ray Serve deployment of rollout engines: N replicas, each a competing consumer of the log around one engine."""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial
from pathlib import Path
from typing import Any

from ray import serve

from schemas.errors import EngineError, SlimeEventsError, StorageError
from schemas.workers import WorkerLost
from serve_apps.engine.engine import Engine
from serve_apps.engine.sglang_engine import SglangEngine
from serve_apps.rollout import ChunkRule
from serve_apps.rollout_worker import TAKE_AT_ONCE, RolloutWorker
from slime_events.address import RunAddress
from slime_events.config.engine import EngineSettings
from slime_events.taking_part import taking_part
from slime_events.worker import Worker
from storage.blobs import BlobStore
from storage.group_commit import GroupCommit
from storage.payloads import fetch, offload_async

START_DEADLINE_S = 600.0


class RolloutEngine:
    """A replica. Its work is a task of its own, which Serve does not see: `check_health` watches it."""

    def __init__(self, address: RunAddress, settings: EngineSettings) -> None:
        self._task = asyncio.get_event_loop().create_task(serve_rollouts(address, settings), name="rollouts")

    async def check_health(self) -> None:
        """Serve replaces the replica when its work ended badly; its requests are delivered again to others."""
        if self._task.done() and not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise EngineError(f"the replica's work ended: {error}") from error

    async def state(self) -> str:
        """`working` or `done`."""
        return "done" if self._task.done() else "working"


async def serve_rollouts(address: RunAddress, settings: EngineSettings) -> None:
    """Start an engine, take part in the run until it is over, stop the engine."""
    async with taking_part(address, "engine") as worker:
        try:
            await _work(worker, address, settings)
        except Exception as error:
            reason = f"{error}" if isinstance(error, SlimeEventsError) else f"{type(error).__name__}: {error}"
            with contextlib.suppress(StorageError):
                await worker.say([WorkerLost(worker=worker.id, role=worker.role, reason=reason)])
            raise


async def _work(worker: Worker, address: RunAddress, settings: EngineSettings) -> None:
    begun = time.perf_counter()
    engine: Engine = SglangEngine(settings, log=Path(address.folder) / "logs" / f"sglang-{worker.id}.log")
    try:
        await engine.start(START_DEADLINE_S)
        blobs = BlobStore(address.blob_url)
        async with GroupCommit(worker.log) as commit:
            await worker.join({"engine": time.perf_counter() - begun})
            await RolloutWorker(
                worker,
                engine,
                commit,
                partial(fetch, blobs=blobs),
                partial(offload_async, blobs=blobs),
                room=settings.sglang_server_concurrency,
                rule=ChunkRule(settings.chunk_tokens, settings.chunk_seconds),
                at_once=TAKE_AT_ONCE if settings.replicas > 1 else settings.sglang_server_concurrency,
            ).run()
    finally:
        await engine.stop()


def rollout_app(address: RunAddress, settings: EngineSettings, *, gpus: float) -> Any:
    """The application to `serve.run`. gpus: of one replica; 0 on CPU."""
    deployment = serve.deployment(
        RolloutEngine,
        name="RolloutEngine",
        num_replicas=settings.replicas,
        ray_actor_options={"num_cpus": 0, "num_gpus": gpus},
        health_check_period_s=2.0,
        health_check_timeout_s=20.0,
        graceful_shutdown_timeout_s=5.0,
    )
    return deployment.bind(address, settings)
