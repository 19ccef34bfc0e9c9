"""What a turn costs beside the engine in a session of 1,000 turns: milliseconds, and bytes that are stored for it.

The gateway's app and a rollout worker over a log on a NATS server, with blobs on the disk. The engine is scripted and
answers at once, so all of a turn's time is ours: reading the request, placing it, the log there and back, the answer.
Bytes are those of the turn's events and blobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import AsyncIterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from benchmarks.chunk_cost import _publish
from benchmarks.figure import Better, Figure
from schemas.arrays import pack_tokens
from schemas.prompts import PromptSubmitted, Source
from schemas.rollouts import RolloutRequested, Sampling
from schemas.runs import RunStarted
from schemas.sessions import Credit
from serve_apps.agents.bridge import Bridge
from serve_apps.agents.keys import SessionKeys
from serve_apps.agents.parsing import ParserNames, Parsers
from serve_apps.agents.setup import BODY_LIMIT, AgentRules, AgentSetup
from serve_apps.engine_weights import EngineWeights
from serve_apps.gateway.agents import AgentAccess, AgentDesk
from serve_apps.gateway.app import gateway_app
from serve_apps.gateway.settings import GatewaySettings
from serve_apps.gateway.sources import Sources
from serve_apps.rollout import ChunkRule
from serve_apps.rollout_worker import EngineContext, RolloutWorker
from slime_events.core.run.participant import Participant
from slime_events.core.state.sessions import Limits
from storage.blobs import BlobStore
from storage.group_commit import GroupCommit
from storage.jetstream.log import JetStreamLog
from storage.log import EventLog
from storage.nats.server import NatsServer
from storage.payloads import fetch, offload_async
from tests.agents.models import MODELS, tokenizer
from tests.scripted_engine import Script, ScriptedEngine

RUN, SAMPLE = "session", "inbox-0123456789abcdef-s0"
MARKS = (100, 128, 300, 600, 1000)
FIRST, AROUND = 50, 10
"""Turns that the first figure is the median of, and those before a mark that its figure is."""
ANSWER = 48
RESULT = "The tool says that the answer is 42. " * 16
RULES = AgentRules(
    credit=Credit.ALL,
    limits=Limits(600.0, 3600.0, 3600.0),
    context=None,
    seed=1,
    attempts=3,
    tokens_in_flight=10_000_000,
    grades=True,
)


def measure(turns: int = MARKS[-1]) -> list[Figure]:
    """At the start of a session and at turns of it."""
    with tempfile.TemporaryDirectory() as folder:
        played = asyncio.run(_play(Path(folder), turns))
    first = _median(played, 0, FIRST)
    figures = []
    for begin, end in ((0, FIRST), *((mark - AROUND, mark) for mark in MARKS if mark <= turns)):
        ms, stored = _median(played, begin, end)
        at = f"turns 1 to {FIRST}" if not begin else f"turn {end}"
        note = f"{ms / first[0]:.2f} times the first; request {played[end - 1][2]:,} bytes"
        figures.append(_figure(f"session, {at}: time beside the engine", ms, "ms", note))
        figures.append(_figure(f"session, {at}: stored", stored, "bytes", f"{stored / first[1]:.2f} times the first"))
    return figures


def _median(played: list[tuple[float, int, int]], begin: int, end: int) -> tuple[float, float]:
    """Of milliseconds and of bytes."""
    return median(one[0] for one in played[begin:end]), median(one[1] for one in played[begin:end])


def _figure(name: str, value: float, unit: str, note: str) -> Figure:
    return Figure(name=name, value=value, unit=unit, better=Better.LOWER, note=note)


async def _play(folder: Path, turns: int) -> list[tuple[float, int, int]]:
    """(milliseconds, bytes stored, bytes asked) of each turn."""
    blobs = BlobStore(str(folder / "blobs"))
    async with await NatsServer.start(folder / "nats") as server, contextlib.AsyncExitStack() as stack:
        log = await JetStreamLog.open(server.url, RUN)
        stack.push_async_callback(log.close)
        await _request(log, folder)
        await stack.enter_async_context(_engine(log, blobs))
        client, session = await stack.enter_async_context(_session(log, blobs, folder))
        ends, played = [await log.end()], list[tuple[float, int, int]]()
        kept = [_size(folder / "blobs")]
        chat: list[dict[str, Any]] = [{"role": "user", "content": "Find it."}]
        for _ in range(turns):
            body = json.dumps({"model": "m", "messages": chat, "max_tokens": ANSWER}).encode()
            begun = time.perf_counter()
            answer = await client.post(f"{session['base_url']}/chat/completions", content=body)
            seconds = time.perf_counter() - begun
            assert answer.status_code == 200, answer.text
            chat += [answer.json()["choices"][0]["message"], {"role": "user", "content": RESULT}]
            ends.append(await log.end())
            kept.append(_size(folder / "blobs"))
            played.append((seconds * 1e3, kept[-1] - kept[-2], len(body)))
        sizes = {one.position: len(one.data) async for one in log.read(1)}
    logged = [sum(sizes[at] for at in range(a + 1, b + 1)) for a, b in pairwise(ends)]
    return [(ms, more + own, asked) for (ms, own, asked), more in zip(played, logged, strict=True)]


async def _request(log: EventLog, folder: Path) -> None:
    """What the conductor and the trainer say before a session can be opened."""
    worker, group = Participant(log, "bench"), SAMPLE.rpartition("-s")[0]
    prompt = pack_tokens([1, 2, 3])
    await worker.append([RunStarted(settings={}, code_version="")])
    await _publish(worker, folder)
    source = Source(path="bench", line=0)
    sampling = Sampling(max_new_tokens=ANSWER)
    requested = RolloutRequested(
        sample=SAMPLE, group=group, index=0, prompt=prompt, sampling=sampling, seed=1, agents=True
    )
    await worker.append([PromptSubmitted(group=group, text="?", tokens=prompt, source=source), requested])


@contextlib.asynccontextmanager
async def _engine(log: EventLog, blobs: BlobStore) -> AsyncIterator[None]:
    worker, engine = Participant(log, "engine"), ScriptedEngine(Script(chunk=ANSWER))
    await engine.start(1.0)
    async with GroupCommit(log) as commit:
        weights, rule = EngineWeights(worker, engine, commit), ChunkRule(64, 60.0)
        context = EngineContext(
            worker, engine, commit, partial(fetch, blobs=blobs), partial(offload_async, blobs=blobs), weights, rule
        )
        work = asyncio.create_task(RolloutWorker(context, 8).run())
        try:
            yield
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
    await engine.stop()


@contextlib.asynccontextmanager
async def _session(log: EventLog, blobs: BlobStore, folder: Path) -> AsyncIterator[tuple[httpx.AsyncClient, Any]]:
    """A client of a gateway, and the session that it has opened."""
    made, sources = tokenizer(MODELS[0]), Sources(folder)

    async def events() -> EventLog:
        return log

    async def setup(_: EventLog) -> AgentSetup:
        keep = partial(offload_async, blobs=blobs, limit=BODY_LIMIT)
        put: Any = partial(offload_async, blobs=blobs)
        return AgentSetup(
            RULES, made, Bridge(made), Parsers(ParserNames(), made), partial(fetch, blobs=blobs), put, keep
        )

    async with AgentDesk(events, setup) as desk:
        run: Any = _Run()
        app = gateway_app(run, sources, GatewaySettings(max_body=64 << 20), AgentAccess(desk, SessionKeys(b"secret")))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8500", timeout=60.0) as client:
            headers = {"authorization": f"Bearer {sources.issue('bench')}"}
            opened = await client.post(f"/v1/runs/{RUN}/sessions", json={"wait_s": 10}, headers=headers)
            assert opened.status_code == 201, opened.text
            yield client, opened.json()


class _Run:
    name = RUN


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
