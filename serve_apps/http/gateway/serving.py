"""`GatewayServer`: a run's gateway behind a socket, for the command and for the role."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Protocol

import uvicorn
from fastapi import FastAPI

from schemas.subjects import about
from serve_apps.http.gateway.agents import AgentAccess, AgentDesk, session_keys
from serve_apps.http.gateway.app import gateway_app
from serve_apps.http.gateway.connections import Connections, room_for
from serve_apps.http.gateway.limited_http import LimitedHttp
from serve_apps.http.gateway.live_run import LiveRun
from serve_apps.http.gateway.settings import GatewaySettings
from serve_apps.http.gateway.sources import FOLDER, Sources
from serve_apps.http.gateway.tls_door import TlsDoor
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.run.run_settings import settings_in_force
from storage.log import Readable

if TYPE_CHECKING:
    from serve_apps.rollouts.agents.setup import AgentSetup

STOP_S = 3
"""Seconds that requests in progress get when the server stops. After them streams are cut off."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def url_of(listening: socket.socket, settings: GatewaySettings) -> str:
    """Return the URL of the gateway that listens on a socket."""
    host, port = listening.getsockname()[:2]
    return f"{'https' if settings.tls_cert else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


class HttpConfig(uvicorn.Config):
    """Uvicorn's configuration of an app, with the limits of its connections."""

    def __init__(self, app: FastAPI, settings: GatewaySettings) -> None:
        self.connections = Connections(room_for(settings.max_connections), settings.address_share)
        self.deadlines = settings.deadlines
        super().__init__(
            app,
            http=partial(LimitedHttp, self.connections, self.deadlines),  # type: ignore[arg-type]  # it is only called
            ws="none",
            log_level="warning",
            log_config=None,
            server_header=False,
            timeout_keep_alive=settings.keep_alive_s,
            ssl_certfile=settings.tls_cert or None,
            ssl_keyfile=settings.tls_key or None,
            timeout_graceful_shutdown=STOP_S,
        )


class HttpServer(uvicorn.Server):
    """Uvicorn's server with limits during TLS handshakes. It installs no signal handlers.

    Uvicorn's own handlers raise a signal again after the shutdown, which would cancel the caller's clean-up.
    """

    def __init__(self, config: HttpConfig) -> None:
        super().__init__(config)
        self._http = config

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen. sockets: required, unlike in uvicorn."""
        config, loop = self._http, asyncio.get_running_loop()

        def http() -> asyncio.Protocol:
            return config.http_protocol_class(  # type: ignore[call-arg]
                config=config, server_state=self.server_state, app_state=self.lifespan.state
            )

        def door() -> asyncio.Protocol:
            context = config.ssl
            return http() if context is None else TlsDoor(config.connections, config.deadlines.head_s, context, http)

        await self.lifespan.startup()
        self.servers = [await loop.create_server(door, sock=sock, backlog=config.backlog) for sock in sockets or ()]
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(server: uvicorn.Server, listening: socket.socket) -> None:
    """Serve until the server exits. If this is cancelled, close all connections, which uvicorn would leave open.

    Over an open connection, a client would get answers of a server that has ended.
    """
    try:
        await server.serve([listening])
    except asyncio.CancelledError:
        if server.started:
            await server.shutdown([listening])
        raise


class GatewayServer:
    """A run's gateway. Use it once."""

    def __init__(self, folder: RunFolder, settings: GatewaySettings) -> None:
        self._folder, self._settings = folder, settings
        self._stops = 0
        self._server: uvicorn.Server | None = None

    async def serve(self, listening: socket.socket) -> None:
        """Serve until `stop`."""
        async with (
            LiveRun(self._folder, creds=self._settings.nats_creds or None) as live,
            AgentDesk(live.events, self._agent_setup) as desk,
        ):
            agents = AgentAccess(desk, session_keys(self._folder.path / FOLDER))
            app = gateway_app(live, Sources(self._folder.path), self._settings, agents)
            self._server = HttpServer(HttpConfig(app, self._settings))
            self._apply_stops()
            await serve(self._server, listening)

    async def _agent_setup(self, log: Readable) -> AgentSetup:
        """Return the setup for agents, by the run's settings in force."""
        from serve_apps.rollouts.agents.setup import (
            agent_setup,  # loads the model's tokenizer, which most gateways do not need
        )

        events = [recorded.envelope.event async for recorded in log.read(1, about(log.run, "run", "run"))]
        settings = settings_in_force(events)
        return await agent_setup(settings, settings.run.blob_url or str(self._folder.blobs))

    def stop(self) -> None:
        """Stop once requests in progress are answered, within `STOP_S` seconds. A second call stops immediately."""
        self._stops += 1
        self._apply_stops()

    def _apply_stops(self) -> None:
        if self._server is not None:
            self._server.should_exit, self._server.force_exit = self._stops > 0, self._stops > 1


class Stoppable(Protocol):
    """A server that ends in order."""

    async def serve(self, listening: socket.socket) -> None: ...

    def stop(self) -> None: ...


async def serve_until_signal(server: Stoppable, listening: socket.socket) -> int:
    """Serve until SIGINT or SIGTERM. Returns the first signal, for the caller to raise after its clean-up, or 0."""
    received: list[int] = []

    def stop(number: int) -> None:
        received.append(number)
        server.stop()

    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        await server.serve(listening)
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
    return received[0] if received else 0
