"""What a gateway refuses, and in which words: JSON `{"error": "..."}` with a status that a client can act on."""

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
from serve_apps.gateway.refusal_log import RefusalLog
from serve_apps.gateway.settings import GatewaySettings

_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::\d{1,5})?")
AGAIN_S = 2
"""When a client should come again."""


class Refused(Exception):
    """A request that is answered with this status and sentence."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})


def answer(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """The answer to a request that is refused."""
    body = msgspec.json.encode({"error": message})
    return Response(body, status, headers=dict(headers or {}), media_type="application/json")


def refusal(request: Request, error: Refused) -> Response:
    """The same, with the reason noted for the log."""
    request.state.why = str(error)
    return answer(error.status, str(error), error.headers)


async def read_body(request: Request, most: int, instead: str = "") -> bytes:
    """`whole_body` of a request; a longer one is refused before it is read, where its client says how long it is."""
    if says_more(request, most):
        raise _too_large(most, instead)
    return await whole_body(request.stream(), most, instead)


async def whole_body(body: AsyncIterator[bytes], most: int, instead: str = "") -> bytes:
    """A body of `most` bytes at most. instead: what to do with a larger one. Raises Refused."""
    data = bytearray()
    async for chunk in body:
        data += chunk
        if len(data) > most:
            raise _too_large(most, instead)
    return bytes(data)


def _too_large(most: int, instead: str) -> Refused:
    return Refused(413, f"a body has {most:,} bytes at most" + (f": {instead}" if instead else ""))


def says_more(request: Request, most: int) -> bool:
    """Whether the client says that its body has more bytes."""
    length = request.headers.get("content-length", "")
    return length.isdecimal() and (len(length) > 20 or int(length) > most)


def host_of(header: str) -> str | None:
    """A name or an address, without its port; None for what is neither."""
    match = _HOST.fullmatch(header.lower())
    return match and (match[1] or match[2])


def refusals(app: FastAPI, settings: GatewaySettings) -> FastAPI:
    """The app, which answers errors, logs refusals, and looks at where a request comes from before anything else."""
    app.add_middleware(Guard, settings=settings)
    _answers(app)
    return app


class Guard:
    """Around the app. A web page of anywhere can send a browser's requests to this machine. So `Host` has to be a name
    of the gateway's (an attacker's name may lead here), and `Origin`, which browsers send, one that is allowed.

    Each piece of a stream goes through it as it is: Starlette's own middleware hands every piece to another task first.
    """

    def __init__(self, app: ASGIApp, settings: GatewaySettings) -> None:
        self._app, self._settings, self._told = app, settings, RefusalLog()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        scope.setdefault("state", {})  # which those behind it write who and why into
        allowed: dict[str, str] = {}

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(allowed)
                if 400 <= message["status"] < 500 and message["status"] != 429:
                    self._told.write(request, message["status"])
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
        """What the answer to a web page says more. Raises Refused."""
        settings, hosts = self._settings, request.headers.getlist("host")
        if len(hosts) != 1 or host_of(hosts[0]) not in settings.names:
            raise Refused(421, f"Host {', '.join(hosts)!r} is no name of this gateway ({settings.flag('host-name')})")
        origin = request.headers.get("origin")
        if origin is None:
            return {}
        if origin not in settings.origins:
            raise Refused(403, f"web pages of {origin} may not use this gateway ({settings.flag('allow-origin')})")
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Headers": "Authorization, Content-Type, Idempotency-Key",
            "Vary": "Origin",
        }


def _answers(app: FastAPI) -> None:
    """To each error."""

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> Response:
        return refusal(request, error)

    @app.exception_handler(RecursionError)
    async def deep(request: Request, _: RecursionError) -> Response:
        return refusal(request, Refused(400, "nested too deeply"))

    @app.exception_handler(ClientDisconnect)
    async def left(request: Request, _: ClientDisconnect) -> Response:
        return refusal(request, Refused(400, "the client left in the middle of its request"))

    @app.exception_handler(HTTPException)
    async def unknown(_: Request, error: HTTPException) -> Response:
        return answer(error.status_code, f"{error.detail}: see /openapi.json", error.headers)

    @app.exception_handler(SlimeEventsError)
    async def failed(request: Request, error: SlimeEventsError) -> Response:
        request.state.why = str(error)
        if isinstance(error, RunNotFound):
            return answer(404, str(error))
        if isinstance(error, UnwritableEvent | EventTooLarge):  # what the client sent cannot be kept
            return answer(413 if isinstance(error, EventTooLarge) else 400, str(error))
        if isinstance(error, RunIsOver):  # it is in vain to come again
            return answer(409, str(error))
        if isinstance(error, LogUnavailable | DeadlineExceeded):
            status = 429 if isinstance(error, InboxFull) else 503
            return answer(status, str(error), {"Retry-After": str(AGAIN_S)})
        return answer(500, str(error))

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> Response:
        """The error goes on to the log of whoever serves the app."""
        return answer(500, f"the gateway failed over this request: {type(error).__name__}; its log says where")
