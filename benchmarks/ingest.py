"""Measure how fast a run takes prompts from outside, each on disk before its reply: over NATS, and over HTTP.

This process takes the prompts with a run's inbox and the demo model's tokenizer. Another process sends them:
`python -m benchmarks.ingest nats|http WHERE RUN TOKEN COUNT`. The server and the gateway have their own processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import nats

from actors.doors import PromptDoor
from actors.inbox import Doors, Inbox
from benchmarks.figure import Figure
from schemas.inbox import PROMPTS
from schemas.runs import RunStarted
from serve_apps.http.gateway.sources import Sources
from slime_events.app.demo.settings import prepare_demo
from slime_events.core.config.data import DataSettings
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.state.keeper import LatestState
from slime_events.loop.conductor.outside_prompts import OutsidePrompts
from slime_events.plugins.tokenizer import Tokenizer, load_tokenizer
from storage.jetstream.log import JetStreamLog
from storage.nats.accounts import Access, file_of
from storage.nats.ports import free_port
from storage.open_log import own_server

RUN, BATCH, AT_ONCE = "ingest", 500, 4
"""Prompts per message or request, and number of these in flight."""
TARGETS = {"nats": 5000.0, "http": 1500.0}


def measure(count: int = 40_000) -> list[Figure]:
    """Return prompts per second over NATS and over HTTP."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_measure(Path(folder), count))


async def _measure(folder: Path, count: int) -> list[Figure]:
    tokenizer = load_tokenizer(prepare_demo(folder / "data").engine.hf_checkpoint)
    run = RunFolder.create(folder, RUN)
    run.settings.write_text(f'[run]\nrun = "{RUN}"\n')
    token, port = Sources(run.path).issue("bench"), free_port()
    figures = []
    async with _taking(run, tokenizer), _gateway(run, port):
        for way, where in (("nats", str(file_of(run.nats, Access.PRODUCER))), ("http", f"http://127.0.0.1:{port}")):
            seconds = await _sent(way, where, token, count)
            note = f"{count:,} prompts, {BATCH} at once, {AT_ONCE} messages or requests under way"
            name = f"prompts from outside over {way.upper()}"
            figures.append(Figure(name=name, value=count / seconds, unit="/s", target=TARGETS[way], note=note))
    return figures


@contextlib.asynccontextmanager
async def _taking(run: RunFolder, tokenizer: Tokenizer) -> AsyncIterator[None]:
    """Run a NATS server and a run's inbox while inside."""
    server = await own_server(run.path, RUN)
    try:
        log = await JetStreamLog.open(server.address(Access.ROLES), RUN)
        worker = Participant(log, "inbox")
        await worker.append([RunStarted(settings={}, code_version="")])
        doors: Doors = {PROMPTS: PromptDoor(OutsidePrompts(DataSettings(), tokenizer, None))}
        async with Inbox(worker, partial(asyncio.sleep, 0, doors), LatestState(log), server.address(Access.ROLES)):
            yield
        await log.close()
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def _gateway(run: RunFolder, port: int) -> AsyncIterator[None]:
    words = ["-m", "slime_events.app.cli.main", "gateway", str(run.path), "--listen", f"127.0.0.1:{port}"]
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()
    try:
        yield
    finally:
        process.kill()
        await process.wait()


async def _sent(way: str, where: str, token: str, count: int) -> float:
    """Run the sender, and return its seconds."""
    words = ["-m", "benchmarks.ingest", way, where, RUN, token, str(count)]
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    return float(output)


def _messages(way: str, count: int) -> list[list[dict[str, Any]]]:
    prompts = [{"key": f"{way}-{n}", "prompt": f"What is {n} + {n}?", "label": str(2 * n)} for n in range(count)]
    return [prompts[at : at + BATCH] for at in range(0, count, BATCH)]


async def over_nats(credentials: str, run: str, _: str, count: int) -> float:
    """Send prompts over NATS, and return the seconds until the last reply."""
    to = json.loads(Path(credentials).read_text())
    client = await nats.connect(to["url"], user=to["user"], password=to["password"])
    begun = time.perf_counter()

    async def send(prompts: list[dict[str, Any]]) -> None:
        reply = await client.request(f"slime.{run}.inbox.prompts", json.dumps(prompts).encode(), timeout=60)
        assert json.loads(reply.data)["accepted"], reply.data

    await _all(send, _messages("nats", count))
    seconds = time.perf_counter() - begun
    await client.close()
    return seconds


async def over_http(gateway: str, run: str, token: str, count: int) -> float:
    """Send prompts over HTTP, and return the seconds until the last reply."""
    headers = {"authorization": f"Bearer {token}", "content-type": "application/x-ndjson"}
    async with httpx.AsyncClient(base_url=gateway, headers=headers, timeout=60) as client:
        begun = time.perf_counter()

        async def send(prompts: list[dict[str, Any]]) -> None:
            answer = await client.post(f"/v1/runs/{run}/prompts", content="\n".join(map(json.dumps, prompts)))
            assert answer.status_code == 202, answer.text

        await _all(send, _messages("http", count))
        return time.perf_counter() - begun


Prompts = list[dict[str, Any]]


async def _all(send: Callable[[Prompts], Awaitable[None]], messages: list[Prompts]) -> None:
    """Send the messages from AT_ONCE senders, each one message after the other."""
    left = iter(messages)

    async def send_next() -> None:
        for prompts in left:
            await send(prompts)

    await asyncio.gather(*(send_next() for _ in range(AT_ONCE)))


if __name__ == "__main__":
    way, *arguments, number = sys.argv[1:]
    sender = over_nats if way == "nats" else over_http
    print(asyncio.run(sender(*arguments, int(number))))
