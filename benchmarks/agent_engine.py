"""The engine of `benchmarks.agent_latency`: records the times of its calls and of their first tokens.

python -m benchmarks.agent_engine scripted|SGLang RUN STAMPS SECONDS     the engine's process, which runs until killed
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from serve_apps.engines.engine import Delta, Engine, GenerateRequest
from serve_apps.engines.engine_weights import EngineWeights
from serve_apps.rollouts.rollout import ChunkRule
from serve_apps.rollouts.rollout_worker import EngineContext, RolloutWorker
from slime_events.app.demo.settings import prepare_demo
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.participant import Participant
from storage.blobs import BlobStore
from storage.group_commit import GroupCommit
from storage.jetstream.log import JetStreamLog
from storage.nats.accounts import Access
from storage.nats.server import NatsServer
from storage.payloads import fetch, offload_async
from tests.scripted_engine import Script, ScriptedEngine

RUN = "latency"
ANSWER = 4
"""Tokens of an answer."""
READY_S = 120.0


class Timed:
    """An engine that records the times of its calls and of their first tokens."""

    def __init__(self, engine: Engine, stamps: Path) -> None:
        self._engine, self._stamps = engine, stamps.open("a", buffering=1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        """See `Engine.generate`."""
        called, generated = time.time_ns(), 0
        async with contextlib.aclosing(self._engine.generate(request)) as deltas:  # type: ignore[type-var]
            async for delta in deltas:
                first = not generated and len(delta.tokens)
                generated = generated or time.time_ns()
                yield delta
                if first:
                    self._stamps.write(json.dumps([request.rid, called, generated]) + "\n")


class Paced(ScriptedEngine):
    """Yields the first token after a fixed time, and the others at once; all tokens are the same."""

    def __init__(self, first_s: float, token: int) -> None:
        super().__init__(Script(chunk=1))
        self._first_s, self._token = first_s, token

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        """See `Engine.generate`."""
        await asyncio.sleep(self._first_s)
        async for delta in super().generate(request):
            yield delta

    def token(self, seed: int, position: int) -> int:
        return self._token


def settings_of(folder: Path) -> TrainSettings:
    """Return the settings of a run of agents on the demo's model."""
    settings = prepare_demo(folder / "data")
    rollout = msgspec.structs.replace(settings.rollout, agents=True, rollout_max_response_len=ANSWER)
    engine = msgspec.structs.replace(settings.engine, sglang={})  # agents' turns share prefixes, so the cache stays on
    run = msgspec.structs.replace(settings.run, run=RUN, runs_dir=str(folder))
    return msgspec.structs.replace(settings, rollout=rollout, engine=engine, run=run)


async def work(kind: str, run: Path, stamps: Path, first_s: float) -> None:
    """Run the engine until killed."""
    settings = settings_of(run.parent)
    server = NatsServer.attach(run / "nats")
    assert server is not None
    if kind == "scripted":
        from slime_events.plugins.tokenizer import load_tokenizer

        token = load_tokenizer(settings.engine.hf_checkpoint).encode("a", add_special_tokens=False)[0]
        engine: Any = Paced(first_s, token)
    else:
        from serve_apps.engines.sglang_engine import SglangEngine

        engine = SglangEngine(settings.engine)
    engine = Timed(engine, stamps)
    await engine.start(READY_S)
    try:
        log = await JetStreamLog.open(server.address(Access.ROLES), RUN)
        blobs, worker = BlobStore(str(run / "blobs")), Participant(log, "engine")
        async with GroupCommit(log) as commit:
            weights = EngineWeights(worker, engine, commit)
            give, put = partial(fetch, blobs=blobs), partial(offload_async, blobs=blobs)
            rule = ChunkRule(settings.engine.chunk, settings.engine.chunk_seconds)
            await RolloutWorker(EngineContext(worker, engine, commit, give, put, weights, rule), 8).run()
    finally:
        await engine.stop()


if __name__ == "__main__":
    which, where, stamped, seconds = sys.argv[1:]
    uvloop.run(work(which, Path(where), Path(stamped), float(seconds)))
