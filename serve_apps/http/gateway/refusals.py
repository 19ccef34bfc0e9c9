"""Refusals of a gateway: JSON `{"error": "..."}` with an HTTP status that a client can act on."""

import re
from collections.abc import AsyncIterator, Mapping

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from schemas.errors import (
    DeadlineExceeded,
    EventTooLarge,
    InboxFull,
    LogUnavailable,
    RunIsOver,
    RunNotFound,
    SlimeEventsError,
    UnwritableEvent,
)
from serve_apps.http.gateway.refusal_log import RefusalLog
from serve_apps.http.gateway.settings import GatewaySettings

_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::\d{1,5})?")
AGAIN_S = 2
"""Seconds after which a client should retry."""


class Refused(Exception):
    """A request that is refused. status: HTTP status of the answer, whose `error` is the message."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})


def answer(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return the answer to a refused request."""
    body = msgspec.json.encode({"error": message})
    return Response(body, status, headers=dict(headers or {}), media_type="application/json")


def refusal(request: Request, error: Refused) -> Response:
    """Return the answer to a refused request, and note the reason for the refusal log."""
    request.state.why = str(error)
    return answer(error.status, str(error), error.headers)


async def read_body(request: Request, most: int, instead: str = "") -> bytes:
    """Read the body of a request like `whole_body`. Refuse it unread if its Content-Length is too large."""
    if says_more(request, most):
        raise _too_large(most, instead)
    return await whole_body(request.stream(), most, instead)


async def whole_body(body: AsyncIterator[bytes], most: int, instead: str = "") -> bytes:
    """Read a body. Raises Refused if it has more than `most` bytes. instead: tells the client what to do then."""
    data = bytearray()
    async for chunk in body:
        data += chunk
        if len(data) > most:
            raise _too_large(most, instead)
    return bytes(data)


def _too_large(most: int, instead: str) -> Refused:
    return Refused(413, f"a body is limited to {most:,} bytes" + (f": {instead}" if instead else ""))


def says_more(request: Request, most: int) -> bool:
    """Return whether Content-Length is larger than `most`."""
    length = request.headers.get("content-length", "")
    return length.isdecimal() and (len(length) > 20 or int(length) > most)


def host_of(header: str) -> str | None:
    """Return the name or address of a Host header without its port; None if the header is not valid."""
    match = _HOST.fullmatch(header.lower())
    return match and (match[1] or match[2])


def refusals(app: FastAPI, settings: GatewaySettings) -> FastAPI:
    """Add error answers, the refusal log and the check of Host and Origin to the app."""
    app.add_middleware(Guard, settings=settings)
    error_answers(app)
    return app


class Guard:
    """ASGI middleware that checks Host and Origin, and logs refusals.

    Any web page can make a browser send requests to this machine. So Host must be a name of the gateway, because an
    attacker's name may resolve to it, and Origin, which browsers send, must be allowed. Pieces of a stream pass
    directly; Starlette's own middleware would hand each piece to another task first.
    """

    def __init__(self, app: ASGIApp, settings: GatewaySettings) -> None:
        self._app, self._settings, self._refusal_log = app, settings, RefusalLog()
        self._names = settings.names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        scope.setdefault("state", {})  # routes write `who` and `why` for the refusal log here
        allowed: dict[str, str] = {}

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(allowed)
                if 400 <= message["status"] < 500 and message["status"] != 429:
                    self._refusal_log.write(request, message["status"])
            await send(message)

        app = self._app
        try:
            allowed |= self._admitted(request)
            if allowed and request.method == "OPTIONS":
                app = Response(status_code=204)
        except Refused as error:
            app = refusal(request, error)
        await app(scope, receive, sent)

    def _admitted(self, request: Request) -> dict[str, str]:
        """Return headers to add to an answer for a web page; empty for other clients. Raises Refused."""
        settings, hosts = self._settings, request.headers.getlist("host")
        if len(hosts) != 1 or host_of(hosts[0]) not in self._names:
            message = (
                f"Host {', '.join(hosts)!r} is not a name of this gateway: add it with {settings.flag('host-name')}"
            )
            raise Refused(421, message)
        origin = request.headers.get("origin")
        if origin is None:
            return {}
        if origin not in settings.origins:
            message = f"web pages of {origin} may not use this gateway: allow them with {settings.flag('allow-origin')}"
            raise Refused(403, message)
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Headers": "Authorization, Content-Type, Idempotency-Key",
            "Vary": "Origin",
        }


def error_answers(app: FastAPI) -> None:
    """Add the answers to errors."""

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> Response:
        return refusal(request, error)

    @app.exception_handler(RecursionError)
    async def deep(request: Request, _: RecursionError) -> Response:
        return refusal(request, Refused(400, "the body is nested too deeply"))

    @app.exception_handler(ClientDisconnect)
    async def left(request: Request, _: ClientDisconnect) -> Response:
        return refusal(request, Refused(400, "the client disconnected before the end of its request"))

    @app.exception_handler(HTTPException)
    async def unknown(_: Request, error: HTTPException) -> Response:
        return answer(error.status_code, f"{error.detail}: see /openapi.json", error.headers)

    @app.exception_handler(SlimeEventsError)
    async def failed(request: Request, error: SlimeEventsError) -> Response:
        request.state.why = str(error)
        if isinstance(error, RunNotFound):
            return answer(404, str(error))
        if isinstance(error, UnwritableEvent | EventTooLarge):  # the log cannot store what the client sent
            return answer(413 if isinstance(error, EventTooLarge) else 400, str(error))
        if isinstance(error, RunIsOver):  # a retry cannot succeed
            return answer(409, str(error))
        if isinstance(error, LogUnavailable | DeadlineExceeded):
            status = 429 if isinstance(error, InboxFull) else 503
            return answer(status, str(error), {"Retry-After": str(AGAIN_S)})
        return answer(500, str(error))

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> Response:
        """Answer 500. The server of the app logs the error, which Starlette raises again."""
        return answer(500, f"the server failed on this request with {type(error).__name__}: see its log")
