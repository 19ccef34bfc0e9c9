"""Measure the way to a first token without our code: uvicorn, nats-py and a NATS server that syncs.

    HTTP request -> batch of two messages into a stream, and a message to the engine beside it -> (its own time)
                 -> one message into the stream -> a message to the server -> a line of an event stream

python -m benchmarks.agent_floor serve|work URL ...     its processes, which run until killed
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
from nats.aio.client import Client
from nats.aio.msg import Msg

from storage.nats.batch_staging import stage_in_memory
from storage.nats.ports import free_port
from storage.nats.server import NatsServer

STREAM, TURNS, ENGINE = "floor", 60, "floor.engine"
BODY = b"x" * 600
"""A message with the size of a typical event."""


async def serve(url: str, port: str) -> None:
    """Serve event streams of one line each."""
    client = await nats.connect(url)
    jobs: set[asyncio.Task[Any]] = set()

    async def app(scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
        await receive()
        reply: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        inbox = client.new_inbox()

        async def take(message: Msg) -> None:
            reply.set_result(message)

        subscription = await client.subscribe(inbox, cb=take)
        await client.publish(ENGINE, BODY, reply=inbox)
        jobs.add(append := asyncio.create_task(append_two(client)))
        append.add_done_callback(jobs.discard)
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        message = await reply
        await send({"type": "http.response.body", "body": b"data: %b\n\n" % message.data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        await append
        await subscription.unsubscribe()

    listening = socket.create_server(("127.0.0.1", int(port)))
    print("listens", flush=True)
    await uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off")).serve([listening])


async def append_two(client: Client) -> None:
    """Append one atomic batch of two messages."""
    batch = {"Nats-Batch-Id": f"{time.time_ns()}"}
    await client.publish(f"{STREAM}.a", BODY, headers=batch | {"Nats-Batch-Sequence": "1"})
    await client.request(f"{STREAM}.b", BODY, headers=batch | {"Nats-Batch-Sequence": "2", "Nats-Batch-Commit": "1"})


async def work(url: str, seconds: str) -> None:
    """Act as an engine: after `seconds`, append a message to the stream, then reply."""
    client = await nats.connect(url)

    async def make(message: Msg) -> None:
        begun = time.perf_counter()
        await asyncio.sleep(float(seconds))
        took = time.perf_counter() - begun
        await client.request(f"{STREAM}.c", BODY)
        await client.publish(message.reply, json.dumps(took).encode())

    await client.subscribe(ENGINE, cb=make)
    print("listens", flush=True)
    await asyncio.Event().wait()


async def added_ms(gateway: str) -> float:
    """Return the median of a client's waiting time minus the engine's time, in milliseconds."""
    host, _, port = gateway.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    seconds = []
    for _ in range(TURNS):
        begun = time.perf_counter()
        writer.write(f"POST / HTTP/1.1\r\nHost: {gateway}\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        while not (line := await reader.readline()).startswith(b"data: "):
            pass
        seconds.append(time.perf_counter() - begun - float(line[6:]))
        await reader.readuntil(b"0\r\n\r\n")
    writer.close()
    return statistics.median(seconds) * 1e3


async def floor_ms(folder: Path, first_ms: float) -> float:
    """Return the added milliseconds. first_ms: the engine's own time."""
    gateway = f"127.0.0.1:{free_port()}"
    async with contextlib.AsyncExitStack() as stack:
        server = await NatsServer.start(folder)
        stack.push_async_callback(server.stop)
        client = await nats.connect(server.url)
        stack.push_async_callback(client.close)
        config = {"name": STREAM, "subjects": [f"{STREAM}.{name}" for name in "abc"], "allow_atomic": True}
        created = await client.request(f"$JS.API.STREAM.CREATE.{STREAM}", json.dumps(config).encode())
        assert b"error" not in created.data, created.data
        stage_in_memory(folder)
        words = ["-m", "benchmarks.agent_floor"]
        await stack.enter_async_context(running([*words, "work", server.url, str(first_ms / 1e3)], listens=True))
        await stack.enter_async_context(
            running([*words, "serve", server.url, gateway.rpartition(":")[2]], listens=True)
        )
        return await added_ms(gateway)


@contextlib.asynccontextmanager
async def running(words: Sequence[str], *, listens: bool = False) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a Python process while inside. listens: wait for a line that it prints when it listens."""
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
