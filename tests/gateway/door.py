"""A connection over a transport that keeps what happened to it, with an app behind it and a clock of the test's."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from uvicorn.server import ServerState

from serve_apps.http.gateway import limited_http
from serve_apps.http.gateway.limited_http import LimitedHttp
from serve_apps.http.gateway.serving import HttpConfig
from serve_apps.http.gateway.settings import GatewaySettings

SETTINGS = GatewaySettings(
    head_s=1.0, body_s=2.0, body_bytes=100, write_s=4.0, keep_alive_s=1000, max_connections=3, address_share=1.0
)
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
WAIT = GET.replace(b"/ ", b"/wait ")


class Transport:
    """unread: bytes that the client has not read."""

    def __init__(self) -> None:
        self.written, self.unread = bytearray(), 0
        self.closed = self.aborted = self.paused = False

    def get_extra_info(self, name: str) -> Any:
        return {"peername": ("10.0.0.1", 5), "sockname": ("127.0.0.1", 80)}.get(name)

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.closed or self.aborted

    def get_write_buffer_size(self) -> int:
        return self.unread

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class Door:
    """A connection and its app, which waits at /wait, /begun and /unread until `go` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.go, self.calls = 0.0, asyncio.Event(), list[str]()
        self.transport = Transport()
        monkeypatch.setattr(limited_http, "time", SimpleNamespace(monotonic=lambda: self.now))

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await self.app(scope, receive, send)

        config: Any = HttpConfig(app, SETTINGS)  # type: ignore[arg-type]
        config.load()
        self.shared, self.state = config.connections, ServerState()
        self.http = LimitedHttp(self.shared, config.deadlines, config=config, server_state=self.state, app_state={})
        self.http.connection_made(self.transport)

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        self.calls.append(scope["path"])
        if scope["path"] == "/read":
            while (await receive())["more_body"]:
                pass
        start = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
        if scope["path"] == "/begun":
            await send(start)
        if scope["path"] in ("/wait", "/begun", "/unread"):
            await self.go.wait()
        if scope["path"] != "/begun":
            await send(start)
        await send({"type": "http.response.body", "body": b"{}"})

    async def get(self, data: bytes, at: float | None = None) -> None:
        """Bytes of the client, and what follows of them at once."""
        self.now = self.now if at is None else at
        self.http.data_received(data)
        await self.settled()

    async def settled(self) -> None:
        for _ in range(8):
            await asyncio.sleep(0)

    def look(self, at: float) -> None:
        self.now = at
        self.http.look(at)

    @property
    def statuses(self) -> list[int]:
        return [int(part[1:4]) for part in bytes(self.transport.written).split(b"HTTP/1.1")[1:]]

    @property
    def notes(self) -> str:
        """The last error."""
        head, _, body = bytes(self.transport.written).rpartition(b"\r\n\r\n")
        assert int(head.rpartition(b"content-length: ")[2].partition(b"\r\n")[0]) == len(body)
        assert b"connection: close" in head
        return str(json.loads(body)["error"])
