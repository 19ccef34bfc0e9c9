"""`Guard`: which requests a console answers, and the headers of every answer."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve_apps.http.gateway.refusals import Refused, answer, host_of
from serve_apps.http.gateway.settings import GatewaySettings

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
METHODS = ("GET", "HEAD")


class Guard:
    """ASGI middleware. Any web page can make a browser send requests to this machine: Host must be a name of the
    console, because an attacker's name may resolve to it, and Origin, if there is one, must be that name too.
    """

    def __init__(self, app: ASGIApp, settings: GatewaySettings) -> None:
        self._app, self._names = app, settings.names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        app = self._app
        try:
            self._check(Request(scope))
        except Refused as error:
            app = answer(error.status, str(error), error.headers)
        await app(scope, receive, sent)

    def _check(self, request: Request) -> None:
        hosts, origin = request.headers.getlist("host"), request.headers.get("origin")
        if len(hosts) != 1 or host_of(hosts[0]) not in self._names:
            raise Refused(421, f"Host {', '.join(hosts)!r} is not a name of this console: add it with --host-name")
        if origin is not None and origin not in (f"http://{hosts[0]}", f"https://{hosts[0]}"):
            raise Refused(403, f"web pages of {origin} may not use this console")
        raw = request.scope.get("raw_path", b"").lower()
        if request.url.path.startswith("/api") and b"%2f" in raw:  # would be read as the path of something else
            raise Refused(404, "names of runs, groups and samples have no slash")
        if request.method not in METHODS:
            raise Refused(405, f"a console only reads: {request.method} is not answered", {"Allow": ", ".join(METHODS)})
