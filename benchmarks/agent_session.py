"""Measure a turn without the engine's time in a session of 1,000 turns: milliseconds, and stored bytes.

It uses the gateway's app and a rollout worker over a log on a NATS server, with blobs on disk. The scripted engine
replies at once, so a turn's time is that of our code: read the request, place it, append and read events, reply. Bytes
are those of the turn's events and blobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

from benchmarks.figure import Better, Figure
from schemas.doc import doc
from storage.jetstream.log import JetStreamLog
from storage.nats.server import NatsServer
from tests.agents.lone_session import LoneSession

MARKS = (100, 128, 300, 600, 1000)
FIRST, AROUND = 50, 20
"""Number of turns in the median of the first figure, and of the figure at each mark."""
ANSWER = 48
RESULT = "The tool says that the answer is 42. " * 16


class Played(NamedTuple):
    """Measurements of a turn."""

    ms: float
    cpu_ms: float
    stored: Annotated[int, doc("Bytes of its events and blobs")]
    request: Annotated[int, doc("Bytes of its request")]


def measure(turns: int = MARKS[-1]) -> list[Figure]:
    """Return the figures at the start of a session and at later turns."""
    with tempfile.TemporaryDirectory() as folder:
        played = asyncio.run(_play(Path(folder), turns))
    first, figures = played[:FIRST], list[Figure]()
    for begin, end in ((0, FIRST), *((mark - AROUND, mark) for mark in MARKS if mark <= turns)):
        at = f"turn {end}" if begin else f"turns 1 to {FIRST}"
        some = played[begin:end]
        ms, cpu, stored = (_median(some, name) for name in ("ms", "cpu_ms", "stored"))
        note = (
            f"{ms / _median(first, 'ms'):.2f} times the first; CPU {cpu:.1f} ms, {cpu / _median(first, 'cpu_ms'):.2f} "
            f"times the first; request {some[-1].request:,} bytes"
        )
        figures.append(_figure(f"agent's session, {at}: beside the engine", ms, "ms", note))
        times = stored / _median(first, "stored")
        figures.append(_figure(f"agent's session, {at}: stored", stored, "bytes", f"{times:.2f} times the first"))
    return figures


def _median(played: list[Played], name: str) -> float:
    return median(getattr(turn, name) for turn in played)


def _figure(name: str, value: float, unit: str, note: str) -> Figure:
    return Figure(name=name, value=value, unit=unit, better=Better.LOWER, note=note)


async def _play(folder: Path, turns: int) -> list[Played]:
    async with await NatsServer.start(folder / "nats") as server, contextlib.AsyncExitStack() as stack:
        log = await JetStreamLog.open(server.url, "session")
        stack.push_async_callback(log.close)
        lone = LoneSession(log, folder, ANSWER)
        await lone.begin()
        await stack.enter_async_context(lone.engine())
        client = await stack.enter_async_context(lone.gateway(context=None, tokens_in_flight=10**9))
        url = f"{(await lone.open(client))['base_url']}/chat/completions"
        ends, played = [await log.end()], list[Played]()
        kept, chat = _size(folder / "blobs"), list[Any]([{"role": "user", "content": "Find it."}])
        for _ in range(turns):
            body = json.dumps({"model": "m", "messages": chat, "max_tokens": ANSWER}).encode()
            begun, cpu = time.perf_counter(), time.process_time()
            answer = await client.post(url, content=body)
            ms, cpu_ms = (time.perf_counter() - begun) * 1e3, (time.process_time() - cpu) * 1e3
            assert answer.status_code == 200, answer.text
            chat += [answer.json()["choices"][0]["message"], {"role": "user", "content": RESULT}]
            ends.append(await log.end())
            before, kept = kept, _size(folder / "blobs")
            played.append(Played(ms, cpu_ms, kept - before, len(body)))
        sizes = {recorded.position: len(recorded.data) async for recorded in log.read(1)}
    logged = [sum(sizes[at] for at in range(a + 1, b + 1)) for a, b in pairwise(ends)]
    return [turn._replace(stored=turn.stored + more) for turn, more in zip(played, logged, strict=True)]


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
