"""Consoles behind a socket, over runs in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from serve_apps.http.console.run_source import RunSource
from serve_apps.http.console.serving import ConsoleServer
from serve_apps.http.gateway.listening import bound
from serve_apps.http.gateway.serving import url_of
from serve_apps.http.gateway.settings import GatewaySettings


@contextlib.asynccontextmanager
async def console(source: RunSource) -> AsyncIterator[str]:
    """Serve runs on a free port of the loopback address, and return the URL."""
    settings = GatewaySettings(host="127.0.0.1", port=0)
    server = ConsoleServer(source, settings, None)
    with bound(settings) as listening:
        serving = asyncio.create_task(server.serve(listening))
        try:
            yield url_of(listening, settings)
        finally:
            server.stop()
            await serving
