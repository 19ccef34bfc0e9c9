"""What a gateway refuses, and in which words: JSON `{"error": "..."}` with a status that a client can act on."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from schemas.errors import DeadlineExceeded, InboxFull, LogUnavailable, RunNotFound, SlimeEventsError
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


async def whole_body(body: AsyncIterator[bytes], most: int, instead: str = "") -> bytes:
    """A body of `most` bytes at most. instead: what to do with a larger one. Raises Refused."""
    data = bytearray()
    async for chunk in body:
        data += chunk
        if len(data) > most:
            raise Refused(413, f"a body has {most:,} bytes at most" + (f": {instead}" if instead else ""))
    return bytes(data)


def host_of(header: str) -> str | None:
    """A name or an address, without its port; None for what is neither."""
    match = _HOST.fullmatch(header.lower())
    return match and (match[1] or match[2])


def refusals(app: FastAPI, settings: GatewaySettings) -> FastAPI:
    """The app, which answers errors, logs refusals, and looks at where a request comes from before anything else.

    A web page of anywhere can send a browser's requests to this machine. So `Host` has to be a name of the gateway's
    (an attacker's name may lead here), and `Origin`, which browsers send, one that is allowed.
    """

    told = RefusalLog()

    @app.middleware("http")
    async def guard(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        try:
            response = await admitted(request, call)
        except Refused as error:
            response = refusal(request, error)
        if 400 <= response.status_code < 500 and response.status_code != 429:
            told.write(request, response.status_code)
        return response

    async def admitted(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or host_of(hosts[0]) not in settings.names:
            raise Refused(421, f"Host {', '.join(hosts)!r} is no name of this gateway ({settings.flag('host-name')})")
        origin = request.headers.get("origin")
        if origin is None:
            return await call(request)
        if origin not in settings.origins:
            raise Refused(403, f"web pages of {origin} may not use this gateway ({settings.flag('allow-origin')})")
        response = Response(status_code=204) if request.method == "OPTIONS" else await call(request)
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Allow-Headers"] = "Authorization, Content-Type, Idempotency-Key"
        response.headers["Vary"] = "Origin"
        return response

    _answers(app)
    return app


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
        if isinstance(error, LogUnavailable | DeadlineExceeded):
            status = 429 if isinstance(error, InboxFull) else 503
            return answer(status, str(error), {"Retry-After": str(AGAIN_S)})
        return answer(500, str(error))
