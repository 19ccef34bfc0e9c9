"""Clients that send or read slowly, or open connections and say nothing: others are answered all the time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from serve_apps.http.gateway.connections import RESERVE
from serve_apps.http.gateway.limited_http import MOST_AHEAD
from serve_apps.http.gateway.settings import GatewaySettings
from tests.security.wire import Wire, served

SETTINGS = GatewaySettings(
    port=0, max_connections=8, head_s=0.6, body_s=0.6, body_bytes=1024, write_s=0.8, keep_alive_s=1, address_share=1.0
)
HALF = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-"
LARGE = 12 * 1024 * 1024
MANY = 300
"""Far more than all that are taken: 8 and the reserve."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def app_of(state: dict[str, Any]) -> FastAPI:
    app = FastAPI()

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {}

    @app.get("/slow")
    async def slow(seconds: float = 2.0) -> dict[str, str]:
        await asyncio.sleep(seconds)
        return {"slow": "answer"}

    @app.post("/body")
    async def body(request: Request) -> dict[str, int]:
        return {"bytes": len(await request.body())}

    @app.post("/refused")
    async def refused() -> Response:
        return Response(b"{}", 401)

    @app.get("/large")
    async def large() -> Response:
        return Response(b"x" * LARGE)

    @app.get("/endless")
    async def endless() -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            state["sent"] = 0
            try:
                while True:
                    await asyncio.sleep(0)
                    yield b"x" * 65536
                    state["sent"] += 65536
            finally:
                state["ended"] = True

        return StreamingResponse(pieces())

    return app


@contextlib.asynccontextmanager
async def server(settings: GatewaySettings = SETTINGS, trust: ssl.SSLContext | None = None) -> AsyncIterator[Any]:
    state: dict[str, Any] = {}
    async with served(app_of(state), settings, trust) as wire:
        yield wire, state


async def opened(wire: Wire, data: bytes, **more: Any) -> Streams:
    reader, writer = await asyncio.open_connection(wire.host, wire.port, **more)
    writer.write(data)
    with contextlib.suppress(ConnectionError):
        await writer.drain()
    return reader, writer


def close(*streams: Streams) -> None:
    for _, writer in streams:
        writer.transport.abort()


async def rest(reader: asyncio.StreamReader, within_s: float) -> bytes:
    """Return what comes until the connection is closed. A reset loses nothing that came before it."""
    received = b""
    async with asyncio.timeout(within_s):
        with contextlib.suppress(ConnectionError):
            while part := await reader.read(65536):
                received += part
    return received


async def healthy(wire: Wire) -> None:
    begin = time.monotonic()
    status, answer = await wire.ask(wire.request("GET", "/healthz"))
    assert status == 200, answer
    assert time.monotonic() - begin < 5.0


@pytest.mark.parametrize("sent", [b"", b"G", HALF, b"\r\n", b"POST /body HTTP/1.1\r\n"], ids=repr)
async def test_heads_without_end_lock_nobody_out(sent: bytes) -> None:
    async with server() as (wire, _):
        begin = time.monotonic()
        half = [await opened(wire, sent) for _ in range(MANY)]
        for _ in range(3):
            await healthy(wire)
        waves = 1 + (time.monotonic() - begin) // SETTINGS.head_s  # whose places others took, on a busy machine
        answers = await asyncio.gather(*(rest(reader, 3.0) for reader, _ in half))
        answered = [answer for answer in answers if answer]
        assert all(answer.startswith(b"HTTP/1.1 408") and b'{"error":' in answer for answer in answered)
        assert len(answered) <= (SETTINGS.max_connections + RESERVE) * waves
        assert bool(answered) is (sent not in (b"", b"\r\n"))
        await healthy(wire)
        close(*half)


async def test_a_head_that_comes_byte_by_byte_is_late_too() -> None:
    async with server() as (wire, _):
        reader, writer = await opened(wire, HALF)
        ending = asyncio.create_task(rest(reader, 3.0))
        while not ending.done():
            with contextlib.suppress(ConnectionError):
                writer.write(b"x")
            await asyncio.sleep(0.05)
        assert (await ending).startswith(b"HTTP/1.1 408")
        close((reader, writer))


async def test_an_answer_may_take_long() -> None:
    """Agents wait minutes for one."""
    async with server() as (wire, _):
        assert await wire.ask(wire.request("GET", "/slow")) != (0, b"")
        reader, writer = await opened(wire, wire.request("GET", "/slow").replace(b"close", b"keep-alive"))
        assert b'{"slow":"answer"}' in await rest(reader, 5.0)  # and then it is idle, and closed
        close((reader, writer))


async def test_an_idle_connection_is_closed_and_a_used_one_stays() -> None:
    async with server() as (wire, _):
        reader, writer = await opened(wire, b"")
        request = wire.request("GET", "/healthz").replace(b"close", b"keep-alive")
        for _ in range(4):  # longer than a head may take
            writer.write(request)
            assert (await asyncio.wait_for(reader.readuntil(b"{}"), 1.0)).startswith(b"HTTP/1.1 200")
            await asyncio.sleep(0.3)
        assert await rest(reader, 3.0) == b""
        close((reader, writer))


async def test_a_slow_body_is_late_and_a_steady_one_is_taken() -> None:
    async with server() as (wire, _):
        steady = await opened(wire, wire.request("POST", "/body", length=20 * 512))
        slow = await opened(wire, wire.request("POST", "/body", length=20 * 512))
        silent = await opened(wire, wire.request("POST", "/body", length=20 * 512))
        late = [asyncio.create_task(rest(reader, 5.0)) for reader, _ in (slow, silent)]
        for _ in range(20):
            steady[1].write(b"x" * 512)
            if not late[0].done():
                slow[1].write(b"x")
            await asyncio.sleep(0.1)
        assert b'{"bytes":10240}' in await rest(steady[0], 2.0)
        assert all(answer.startswith(b"HTTP/1.1 408") for answer in await asyncio.gather(*late))
        close(steady, slow, silent)


async def test_the_rest_of_a_refused_request_is_not_waited_for() -> None:
    async with server() as (wire, _):
        request = wire.request("POST", "/refused", length=10**9).replace(b"close", b"keep-alive")
        reader, writer = await opened(wire, request)
        ending = asyncio.create_task(rest(reader, 3.0))
        while not ending.done():
            with contextlib.suppress(ConnectionError):
                writer.write(b"x")
            await asyncio.sleep(0.05)
        assert (await ending).startswith(b"HTTP/1.1 401")
        close((reader, writer))


async def test_who_does_not_read_is_cut_off() -> None:
    async with server() as (wire, state):
        reader, writer = await asyncio.open_connection(wire.host, wire.port, limit=1)
        writer.write(wire.request("GET", "/endless"))
        async with asyncio.timeout(5.0):
            while not state.get("ended"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert state["sent"] < 64 * 1024 * 1024  # what the kernel holds, and no more
        close((reader, writer))


async def test_who_reads_slowly_and_steadily_gets_the_whole_answer() -> None:
    """It takes longer than a client may leave what was written unread."""
    async with server() as (wire, _):
        with socket.socket() as narrow:
            narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            narrow.setblocking(False)
            await asyncio.get_running_loop().sock_connect(narrow, (wire.host, wire.port))
            reader, writer = await asyncio.open_connection(sock=narrow, limit=64 * 1024)
            writer.write(wire.request("GET", "/large"))
            begin, size = time.monotonic(), 0
            while data := await reader.read(200 * 1024):
                size += len(data)
                await asyncio.sleep(0.03)
            assert size > LARGE
            assert time.monotonic() - begin > SETTINGS.write_s
            close((reader, writer))


async def test_requests_ahead_of_their_answers_are_few() -> None:
    async with server() as (wire, _):
        request_ = wire.request("GET", "/healthz").replace(b"close", b"keep-alive")
        reader, writer = await opened(wire, request_ * MOST_AHEAD)
        assert (await rest(reader, 3.0)).count(b"HTTP/1.1 200") == MOST_AHEAD
        other = await opened(wire, wire.request("GET", "/slow").replace(b"close", b"keep-alive") + request_ * 5000)
        assert (await rest(other[0], 3.0)).count(b"HTTP/1.1 200") <= MOST_AHEAD
        await healthy(wire)
        close((reader, writer), other)


async def test_too_many_requests_are_asked_to_come_again_but_for_health() -> None:
    async with server() as (wire, _):
        busy = [await opened(wire, wire.request("GET", "/slow")) for _ in range(SETTINGS.max_connections)]
        await asyncio.sleep(0.2)
        status, answer = await wire.ask(wire.request("GET", "/slow"))
        assert status == 503
        assert b"retry-after: 2" in answer
        assert b'{"error":' in answer
        await healthy(wire)
        answers = [await rest(reader, 4.0) for reader, _ in busy]
        assert all(b'"answer"' in each for each in answers)
        status, _ = await wire.ask(wire.request("GET", "/slow?seconds=0"))
        assert status == 200
        close(*busy)


async def test_one_address_leaves_room_for_another() -> None:
    settings = GatewaySettings(port=0, max_connections=8, address_share=0.5, head_s=0.6, write_s=0.8)
    async with server(settings) as (wire, _):
        busy = [await opened(wire, wire.request("GET", "/slow")) for _ in range(8)]
        await asyncio.sleep(0.2)
        other = await opened(wire, wire.request("GET", "/slow?seconds=0"), local_addr=("127.0.0.2", 0))
        assert (await rest(other[0], 1.0)).startswith(b"HTTP/1.1 200")
        answers = [await rest(reader, 4.0) for reader, _ in busy]
        assert [answer.startswith(b"HTTP/1.1 200") for answer in answers] == [True] * 4 + [False] * 4
        close(*busy, other)


async def test_a_web_socket_is_refused() -> None:
    async with server() as (wire, _):
        upgrade = ("Upgrade: websocket", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Version: 13")
        request = wire.request("GET", "/none", headers=upgrade).replace(b"Connection: close", b"Connection: Upgrade")
        status, _ = await wire.ask(request)
        assert status == 404


async def test_what_is_no_http_is_told_so_in_json() -> None:
    async with server() as (wire, _):
        for sent in (
            b"\x16\x03\x01 hello\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        ):
            status, answer = await wire.ask(sent)
            assert status == 400
            assert b'{"error":' in answer


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    words += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem"]
    subprocess.run([*words, "-out", "cert.pem"], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n"], ids=repr)
async def test_handshakes_without_end_lock_nobody_out(certificate: Path, sent: bytes) -> None:
    cert, key = str(certificate / "cert.pem"), str(certificate / "key.pem")
    settings = GatewaySettings(port=0, max_connections=8, head_s=0.6, tls_cert=cert, tls_key=key, address_share=1.0)
    async with server(settings, ssl.create_default_context(cafile=cert)) as (wire, _):
        half = [await opened(wire, sent) for _ in range(MANY)]
        for _ in range(3):
            await healthy(wire)
        await asyncio.gather(*(rest(reader, 3.0) for reader, _ in half))
        await healthy(wire)
        close(*half)
