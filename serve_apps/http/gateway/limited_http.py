"""`LimitedHttp`: uvicorn's HTTP over httptools with limits on head size and time, which uvicorn does not have."""

import asyncio
import time
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from serve_apps.http.gateway.connections import Connections
from serve_apps.http.gateway.deadlines import Deadlines

if TYPE_CHECKING:
    from uvicorn import Config
    from uvicorn.server import ServerState

MOST_HEAD = 64 * 1024
"""Limit of a request's head in bytes."""
MOST_AHEAD = 16
"""Most requests that a client may send before the answer to an earlier one."""
ALWAYS = (b"/healthz", b"/api/v1/healthz")
"""Paths that are served even if there are too many requests."""


class LimitedHttp(HttpToolsProtocol):
    """One HTTP connection with limits.

    A longer head gets 400, a late client gets 408, and both connections are closed. If the server already answers too
    many requests, a further one gets 503. The time of an answer is not limited.
    """

    def __init__(
        self,
        shared: Connections,
        deadlines: Deadlines,
        config: "Config",
        server_state: "ServerState",
        app_state: dict[str, Any],
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._shared, self._deadlines = shared, deadlines
        self._head: int  # bytes of the head so far
        self._in_head, self._in_body = False, False
        self._late_at: float | None = None  # time after which the client is late
        self._window: tuple[float, int]  # begin, and bytes of the body since then
        self._unread: tuple[float, int] | None = None  # begin, and bytes that the client had not read then

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._expect_soon()
        self._shared.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._shared.remove(self)
        super().connection_lost(exc)

    def drop(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def look(self, now: float) -> None:
        """Close the connection if its client is late. now: seconds of a monotonic clock."""
        if self.transport.is_closing() and self._unread is None:
            self._begin_unread(now)
        if self._unread is not None and now - self._unread[0] > self._deadlines.write_s:
            if self._unread[1] - self.transport.get_write_buffer_size() < self._deadlines.body_bytes:
                self.drop()
            self._begin_unread(now)
        elif self._late_at is not None and now > self._late_at:
            self._late(f"{'the head of a request' if self._in_head else 'a request'} must arrive")
        elif self._in_body and self._late_at is None:
            self._look_at_body(now)

    def _begin_unread(self, now: float) -> None:
        self._unread = now, self.transport.get_write_buffer_size()

    def _look_at_body(self, now: float) -> None:
        begin, size = self._window
        if self.flow.read_paused or self.cycle.waiting_for_100_continue:  # the server makes the client wait
            self._window = now, 0
        elif now - begin >= self._deadlines.body_s:
            if size < self._deadlines.body_bytes:
                self._late(f"{self._deadlines.body_bytes:,} bytes of a body must arrive")
            self._window = now, 0

    def _late(self, what: str) -> None:
        """Answer 408 if a request is incomplete and no answer has begun, and close the connection."""
        self._late_at = None
        if not self._is_answering and (self._in_head or self._in_body):
            seconds = self._deadlines.body_s if self._in_body else self._deadlines.head_s
            self._say(408, f"{what} within {seconds:g} s")
        self.transport.close()

    def _say(self, status: int, message: str) -> None:
        body = msgspec.json.encode({"error": message})
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)

    def send_400_response(self, msg: str) -> None:
        """Answer 400 in JSON if no answer has begun, and close the connection."""
        if not self._is_answering:
            self._say(400, msg)
        self.transport.close()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete

    def _expect_soon(self) -> None:
        self._late_at = time.monotonic() + self._deadlines.head_s

    def on_message_begin(self) -> None:
        self._head, self._in_head = 0, True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MOST_HEAD:
            raise ValueError(f"the head of a request is limited to {MOST_HEAD:,} bytes")
        if len(self.pipeline) >= MOST_AHEAD:
            self.transport.abort()
            raise ValueError(f"a client may send at most {MOST_AHEAD} requests before the answer to an earlier one")
        self._late_at, self._in_body, self._window = None, True, (time.monotonic(), 0)
        full = self._shared.is_full(self) or len(self.tasks) >= self._shared.most
        self.app = too_many if full and self.url not in ALWAYS else self.config.loaded_app
        self._shared.begin(self)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._window = self._window[0], self._window[1] + len(body)
        super().on_body(body)
        if (
            self.pipeline and len(self.cycle.body) > 4 * HIGH_WATER_LIMIT
        ):  # nothing reads it until the earlier answer ends
            self.transport.abort()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if not self.pipeline:
            self._shared.end(self)
            if self._in_head or self._in_body:
                self._expect_soon()
        super().on_response_complete()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        idle = self._late_at is None and (self.cycle is None or self.cycle.response_complete)
        if idle:
            self._expect_soon()
        super().data_received(data)
        if self._in_head:
            self._head += len(data)
            if self._head > MOST_HEAD and not self.transport.is_closing():
                self.send_400_response("Invalid HTTP request received.")

    def pause_writing(self) -> None:
        self._begin_unread(time.monotonic())
        super().pause_writing()

    def resume_writing(self) -> None:
        self._unread = None
        super().resume_writing()


async def too_many(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 503: an ASGI app for requests beyond the limit."""
    body = b'{"error":"the gateway is answering too many requests: retry in 2 s"}'
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    headers += [(b"retry-after", b"2"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
