"""`ConsoleServer`: a console behind a socket."""

from __future__ import annotations

import socket

import uvicorn

from serve_apps.http.console.app import console_app
from serve_apps.http.console.run_source import RunSource
from serve_apps.http.gateway.serving import STOP_S, HttpConfig, HttpServer, serve
from serve_apps.http.gateway.settings import GatewaySettings
from serve_apps.http.gateway.sources import Tokens


class ConsoleServer:
    """A console, with the gateway's limits of connections. Use it once.

    stop_s: seconds that requests in progress get when it stops. Streams take all of them.
    """

    def __init__(
        self, source: RunSource, settings: GatewaySettings, sources: Tokens | None, *, stop_s: int = STOP_S
    ) -> None:
        config = HttpConfig(console_app(source, settings, sources), settings)
        config.timeout_graceful_shutdown = stop_s
        self._server: uvicorn.Server = HttpServer(config)

    async def serve(self, listening: socket.socket) -> None:
        """Serve until `stop`."""
        await serve(self._server, listening)

    def stop(self) -> None:
        """Stop once requests in progress are answered. A second call stops immediately."""
        self._server.force_exit = self._server.should_exit
        self._server.should_exit = True
