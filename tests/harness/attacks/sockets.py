"""C14: half-sent heads and bodies, and readers that do not read, all from one address that is not everybody's."""

from __future__ import annotations

import asyncio
import contextlib
import time

from tests.harness.attacks.attack import Answer, Attack
from tests.harness.attacks.ids import CHAT
from tests.harness.attacks.scene import Scene

MOST = 1000
DEADLINE_S = 75.0
"""Seconds in which a gateway has to hang up on a client that sends no more."""


async def _open(scene: Scene, count: int, sent: bytes) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    connections = []
    for _ in range(count):
        try:
            reader, writer = await asyncio.wait_for(scene.connection(), 5)
            writer.write(sent)
            connections.append((reader, writer))
        except OSError:
            continue
    return connections


async def _held(scene: Scene, count: int, sent: bytes) -> Answer:
    """Return whether another client is answered meanwhile, and how many are hung up on in time."""
    began, connections = time.monotonic(), await _open(scene, count, sent)
    answer = await scene.http.get("/healthz")
    ended = await asyncio.gather(*(_ends(reader, DEADLINE_S) for reader, _ in connections))
    for _, writer in connections:
        writer.close()
    seconds = time.monotonic() - began
    text = f"{sum(ended)} of {len(connections)} hung up on in {seconds:.0f} s; another hears {answer.status_code}"
    return Answer(text, answer.status_code == 200 and all(ended))


async def _ends(reader: asyncio.StreamReader, seconds: float) -> bool:
    with contextlib.suppress(ConnectionError):
        try:
            async with asyncio.timeout(seconds):
                while await reader.read(65536):
                    pass
        except TimeoutError:
            return False
    return True


async def half_heads(scene: Scene) -> Answer:
    return await _held(scene, MOST, b"POST /v1/runs/x/prompts HTTP/1.1\r\nHost: 127")


async def nothing_sent(scene: Scene) -> Answer:
    return await _held(scene, MOST, b"")


async def half_bodies(scene: Scene) -> Answer:
    head = b"POST /v1/runs/%s/prompts HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAuthorization: Bearer %s\r\n"
    lines = head % (scene.run.encode(), scene.port, scene.token.encode())
    return await _held(scene, 200, lines + b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")


async def drip(scene: Scene, head: bytes, pieces: bytes) -> Answer:
    """Send a byte each second: the gateway hangs up, although the client never stops."""
    reader, writer = await scene.connection()
    began = time.monotonic()
    ends = asyncio.ensure_future(_ends(reader, DEADLINE_S))
    try:
        writer.write(head)
        for number in range(int(DEADLINE_S)):
            if ends.done() or writer.is_closing():
                break
            with contextlib.suppress(ConnectionError):
                writer.write(pieces[number : number + 1])
                await writer.drain()
            await asyncio.wait([ends], timeout=1)
        ended = await ends
    finally:
        ends.cancel()
        writer.close()
    return Answer(f"{'hung up on' if ended else 'still heard'} after {time.monotonic() - began:.0f} s", ended)


async def slow_head(scene: Scene) -> Answer:
    return await drip(scene, b"GET /healthz HTTP/1.1\r\nX-Slow: ", b"a" * 1000)


async def slow_body(scene: Scene) -> Answer:
    session = await scene.session()
    path = session.base_url.split("/", 3)[3] + CHAT.removeprefix("/v1")
    head = b"POST /%s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n\r\n"
    return await drip(scene, head % (path.encode(), scene.port), b'{"model": "m", "messages": [' + b" " * 1000)


async def slow_readers(scene: Scene) -> Answer:
    """Ask for large answers again and again on 100 connections, and read none."""
    request = b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % scene.port
    connections = await _open(scene, 100, request * 50)
    await asyncio.sleep(5)
    answer = await scene.http.get("/healthz")
    for _, writer in connections:
        writer.transport.abort()
    return Answer(f"another hears {answer.status_code}", answer.status_code == 200)


async def many_requests(scene: Scene) -> Answer:
    """Send 2,000 requests without a token, 100 at a time."""
    gate = asyncio.Semaphore(100)

    async def status() -> int:
        async with gate:
            return (await scene.http.post("/v1/runs/x/prompts", json={})).status_code

    statuses = set(await asyncio.gather(*(status() for _ in range(2000))))
    return Answer(f"{sorted(statuses)}", statuses <= {401, 403, 404, 429, 503})


ATTACKS: list[Attack] = [
    Attack("1,000 half-sent heads", "connection", "hung up on", half_heads, 120.0),
    Attack("1,000 connections without a byte", "connection", "hung up on", nothing_sent, 120.0),
    Attack("200 half-sent bodies", "connection", "hung up on", half_bodies, 120.0),
    Attack("a head of a byte a second", "connection", "hung up on", slow_head, 120.0),
    Attack("a body of a byte a second", "connection", "hung up on", slow_body, 120.0),
    Attack("100 readers that do not read", "connection", "others are answered", slow_readers),
    Attack("2,000 requests without a token", "prompts", "refused", many_requests, 120.0),
]
