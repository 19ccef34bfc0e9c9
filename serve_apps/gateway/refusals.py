"""What a gateway refuses, and in which words: JSON `{"error": "..."}` with a status that a client can act on."""

from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import urlsplit

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from schemas.errors import DeadlineExceeded, InboxFull, LogUnavailable, RunNotFound, SlimeEventsError
from serve_apps.gateway.settings import GatewaySettings

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


def refusals(app: FastAPI, settings: GatewaySettings) -> FastAPI:
    """The app, which answers errors, and looks at where a request comes from before anything else.

    A web page of anywhere can send a browser's requests to this machine. So `Host` has to be a name of the gateway's
    (an attacker's name may lead here), and `Origin`, which browsers send, one that is allowed.
    """

    @app.middleware("http")
    async def guard(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname
        if host not in settings.names:
            return answer(421, f"Host {host!r} is not a name of this gateway ({settings.flag('host-name')})")
        origin = request.headers.get("origin")
        if origin is None:
            return await call(request)
        if origin not in settings.origins:
            return answer(403, f"web pages of {origin} may not use this gateway ({settings.flag('allow-origin')})")
        response = answer(204, "") if request.method == "OPTIONS" else await call(request)
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Allow-Headers"] = "Authorization, Content-Type, Idempotency-Key"
        response.headers["Vary"] = "Origin"
        return response

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> Response:
        return answer(error.status, str(error), error.headers)

    @app.exception_handler(HTTPException)
    async def unknown(_: Request, error: HTTPException) -> Response:
        return answer(error.status_code, f"{error.detail}: see /openapi.json", error.headers)

    @app.exception_handler(SlimeEventsError)
    async def failed(_: Request, error: SlimeEventsError) -> Response:
        if isinstance(error, RunNotFound):
            return answer(404, str(error))
        if isinstance(error, LogUnavailable | DeadlineExceeded):
            status = 429 if isinstance(error, InboxFull) else 503
            return answer(status, str(error), {"Retry-After": str(AGAIN_S)})
        return answer(500, str(error))

    return app
