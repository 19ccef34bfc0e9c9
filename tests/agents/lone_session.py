"""One session of an agent over any log: gateways and engines, and nobody else of a run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from schemas.arrays import pack_tokens
from schemas.prompts import Source
from schemas.rollouts import Maker, Sampling
from serve_apps.engines.engine import Delta, GenerateRequest, Tokens
from serve_apps.engines.engine_weights import EngineWeights
from serve_apps.http.gateway.agents import AgentAccess, AgentDesk, SessionKeys
from serve_apps.http.gateway.app import gateway_app
from serve_apps.http.gateway.settings import GatewaySettings
from serve_apps.http.gateway.sources import Sources
from serve_apps.rollouts.agents.setup import BODY_LIMIT, AgentSetup
from serve_apps.rollouts.rollout import ChunkRule
from serve_apps.rollouts.rollout_worker import EngineContext, RolloutWorker
from slime_events.core.run.participant import Participant
from storage.blobs import BlobStore
from storage.group_commit import GroupCommit
from storage.log import EventLog
from storage.payloads import fetch, offload_async
from storage.weights.store import WeightStore
from tests import made
from tests.agents import stage
from tests.scripted_engine import Script, ScriptedEngine

SAMPLE = "inbox-0123456789abcdef-s0"
MAX_BODY = 64 * 1024 * 1024


class Asked(ScriptedEngine):
    """It keeps the prompt of each request, by sample. Of several the first: a gateway that is behind the log may tell
    it early of a turn that is there already, which comes to nothing. id: of its worker.
    """

    def __init__(self, script: Script, id_: str) -> None:
        super().__init__(script)
        self.id = id_
        self.prompts: dict[str, Tokens] = {}

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        """See `Engine.generate`."""
        self.prompts.setdefault(request.rid.rpartition("-s0-")[0] + "-s0", request.prompt)
        async for delta in super().generate(request):
            yield delta


class LoneSession:
    """Play one session on a new log. folder: of weights, blobs and sources. answer: tokens of each."""

    def __init__(self, log: EventLog, folder: Path, answer: int) -> None:
        self.log, self.answer = log, answer
        self.name = log.run
        self._folder, self._blobs = folder, BlobStore(str(folder / "blobs"))
        self._sources = Sources(folder)
        self._token = self._sources.issue("bench")
        self.fetch = partial(fetch, blobs=self._blobs)

    async def begin(self, metadata: Any = None) -> None:
        """Append the events that the trainer and the conductor write before a session can open. metadata: of
        the prompt.
        """
        worker, group = Participant(self.log, "test"), SAMPLE.rpartition("-s")[0]
        store, prompt = WeightStore(str(self._folder / "weights")), pack_tokens([1, 2, 3])
        manifest = store.write(0, [("w", "F32", (8,), b"\0" * 32)], parent=None)
        url = store.folder(0, manifest.digest)
        sampling = Sampling(max_new_tokens=self.answer)
        request = made.requested(SAMPLE, prompt=prompt, sampling=sampling, maker=Maker.AGENT)
        await worker.append([made.started()])
        await worker.append(
            [
                made.published(url=url, digest=manifest.digest, bytes=manifest.bytes),
                made.submitted(
                    group, text="?", tokens=prompt, source=Source(path="test", line=0), metadata=metadata or {}
                ),
                request,
            ]
        )

    @contextlib.asynccontextmanager
    async def engine(self, *, room: int = 8) -> AsyncIterator[Asked]:
        """One that answers at once."""
        worker = Participant(self.log, "engine")
        engine = Asked(Script(chunk=self.answer), worker.id)
        await engine.start(1.0)
        async with GroupCommit(self.log) as commit:
            weights, rule = EngineWeights(worker, engine, commit), ChunkRule(64, 60.0)
            offload = partial(offload_async, blobs=self._blobs)
            context = EngineContext(worker, engine, commit, self.fetch, offload, weights, rule)
            work = asyncio.create_task(RolloutWorker(context, room, take_limit=1).run())
            try:
                yield engine
            finally:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
        await engine.stop()

    @contextlib.asynccontextmanager
    async def gateway(self, **rules: Any) -> AsyncIterator[httpx.AsyncClient]:
        """A client of a gateway of its own."""

        async def events() -> EventLog:
            return self.log

        async def setup(_: EventLog) -> AgentSetup:
            kept: Any = partial(offload_async, blobs=self._blobs, limit=BODY_LIMIT)
            put: Any = partial(offload_async, blobs=self._blobs)
            return replace(stage.setup(replace(stage.RULES, **rules)), fetch=self.fetch, offload=put, keep=kept)

        async with AgentDesk(events, setup) as desk:
            run: Any = self
            settings = GatewaySettings(max_body=MAX_BODY)
            app = gateway_app(run, self._sources, settings, AgentAccess(desk, SessionKeys(b"secret")))
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url=stage.URL, timeout=60.0
            ) as client:
                yield client

    async def open(self, client: httpx.AsyncClient) -> dict[str, Any]:
        """The session, of whichever gateway."""
        headers = {"authorization": f"Bearer {self._token}", "idempotency-key": "one"}
        answer = await client.post(f"/v1/runs/{self.log.run}/sessions", json={"wait_s": 10}, headers=headers)
        assert answer.status_code == 201, answer.text
        return dict(answer.json())
