"""What the way to a first token takes without us: uvicorn, nats-py, a NATS server that syncs, and nothing else.

    HTTP request -> batch of two messages into a stream, and a message to the engine beside it -> (its own time)
                 -> one message into the stream -> a message to the server -> a line of an event stream

python -m benchmarks.agent_floor serve|work URL ...     its processes, until they are killed
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import nats
import uvicorn
import uvloop

from storage.nats.batch_staging import stage_in_memory
from storage.nats.ports import free_port
from storage.nats.server import NatsServer

STREAM, TURNS, ENGINE = "floor", 60, "floor.engine"
BODY = b"x" * 600
"""Bytes of a message: what an event of these has."""


async def serve(url: str, port: str) -> None:
    """A server of event streams, each of one line."""
    client = await nats.connect(url)
    jobs: set[asyncio.Task[Any]] = set()

    async def app(scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
        await receive()
        came = asyncio.get_running_loop().create_future()
        inbox = client.new_inbox()

        async def take(message: Any) -> None:
            came.set_result(message)

        heard = await client.subscribe(inbox, cb=take)
        await client.publish(ENGINE, BODY, reply=inbox)
        jobs.add(append := asyncio.create_task(append_two(client)))
        append.add_done_callback(jobs.discard)
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        message = await came
        await send({"type": "http.response.body", "body": b"data: %b\n\n" % message.data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        await append
        await heard.unsubscribe()

    listening = socket.create_server(("127.0.0.1", int(port)))
    print("listens", flush=True)
    await uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off")).serve([listening])


async def append_two(client: Any) -> None:
    """One atomic batch."""
    batch = {"Nats-Batch-Id": f"{time.time_ns()}"}
    await client.publish(f"{STREAM}.a", BODY, headers=batch | {"Nats-Batch-Sequence": "1"})
    await client.request(f"{STREAM}.b", BODY, headers=batch | {"Nats-Batch-Sequence": "2", "Nats-Batch-Commit": "1"})


async def work(url: str, seconds: str) -> None:
    """An engine: what it has made in that time is in the stream before it is told."""
    client = await nats.connect(url)

    async def make(message: Any) -> None:
        begun = time.perf_counter()
        await asyncio.sleep(float(seconds))
        took = time.perf_counter() - begun
        await client.request(f"{STREAM}.c", BODY)
        await client.publish(message.reply, json.dumps(took).encode())

    await client.subscribe(ENGINE, cb=make)
    print("listens", flush=True)
    await asyncio.Event().wait()


async def added_ms(gateway: str) -> float:
    """Median of what a client waits longer than the engine takes."""
    host, _, port = gateway.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    found = []
    for _ in range(TURNS):
        begun = time.perf_counter()
        writer.write(f"POST / HTTP/1.1\r\nHost: {gateway}\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        while not (line := await reader.readline()).startswith(b"data: "):
            pass
        found.append(time.perf_counter() - begun - float(line[6:]))
        await reader.readuntil(b"0\r\n\r\n")
    writer.close()
    return statistics.median(found) * 1e3


async def floor_ms(folder: Path, first_ms: float) -> float:
    """In milliseconds. first_ms: the engine's own time."""
    gateway = f"127.0.0.1:{free_port()}"
    async with contextlib.AsyncExitStack() as stack:
        server = await NatsServer.start(folder)
        stack.push_async_callback(server.stop)
        client = await nats.connect(server.url)
        stack.push_async_callback(client.close)
        config = {"name": STREAM, "subjects": [f"{STREAM}.{one}" for one in "abc"], "allow_atomic": True}
        made = await client.request(f"$JS.API.STREAM.CREATE.{STREAM}", json.dumps(config).encode())
        assert b"error" not in made.data, made.data
        stage_in_memory(folder)
        words = ["-m", "benchmarks.agent_floor"]
        await stack.enter_async_context(running([*words, "work", server.url, str(first_ms / 1e3)], listens=True))
        await stack.enter_async_context(
            running([*words, "serve", server.url, gateway.rpartition(":")[2]], listens=True)
        )
        return await added_ms(gateway)


@contextlib.asynccontextmanager
async def running(words: Sequence[str], *, listens: bool = False) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process of Python's, ended afterwards. listens: it says so in a line."""
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)
    try:
        if listens:
            assert process.stdout is not None
            await process.stdout.readline()
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


if __name__ == "__main__":
    which, *words = sys.argv[1:]
    uvloop.run({"serve": serve, "work": work}[which](*words))
