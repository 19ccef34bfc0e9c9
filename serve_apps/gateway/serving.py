"""`GatewayServer`: a run's gateway behind a socket, for the command and for the role."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI

from schemas.subjects import about
from serve_apps.agents.keys import session_keys
from serve_apps.gateway.agents import AgentAccess, AgentDesk
from serve_apps.gateway.app import gateway_app
from serve_apps.gateway.connections import Connections, room_for
from serve_apps.gateway.limited_http import LimitedHttp
from serve_apps.gateway.live_run import LiveRun
from serve_apps.gateway.settings import GatewaySettings
from serve_apps.gateway.sources import FOLDER, Sources
from serve_apps.gateway.tls_door import TlsDoor
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.run.run_settings import settings_in_force
from storage.log import Readable

if TYPE_CHECKING:
    from serve_apps.agents.setup import AgentSetup

STOP_S = 3
"""Seconds for requests under way when it ends; who follows a group is cut off then."""


SIGNALS = (signal.SIGINT, signal.SIGTERM)


def url_of(listening: socket.socket, settings: GatewaySettings) -> str:
    """Of the gateway behind the socket."""
    host, port = listening.getsockname()[:2]
    return f"{'https' if settings.tls_cert else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


class HttpConfig(uvicorn.Config):
    """How an app is served, and the connections of its one server."""

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
    """Uvicorn's, which itself leaves a connection without limits until its TLS handshake is over. It leaves the
    process's signals alone: uvicorn raises one again when it has ended, as the cancellation of whoever cleans up then.
    """

    def __init__(self, config: HttpConfig) -> None:
        super().__init__(config)
        self._http = config

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's with sockets, which are to be given."""
        config, loop = self._http, asyncio.get_running_loop()

        def http() -> asyncio.Protocol:
            return config.http_protocol_class(  # type: ignore[call-arg]
                config=config, server_state=self.server_state, app_state=self.lifespan.state
            )

        def door() -> asyncio.Protocol:
            context = config.ssl
            return http() if context is None else TlsDoor(config.connections, config.deadlines.head_s, context, http)

        await self.lifespan.startup()
        listening = [await loop.create_server(door, sock=one, backlog=config.backlog) for one in sockets or ()]
        self.servers = listening
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(server: uvicorn.Server, listening: socket.socket) -> None:
    """Answer until the server is told to exit. Where this is cancelled, no connection stays: uvicorn leaves them open,
    and a client that keeps one would be answered by what has ended.
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
        self._stop_asked = 0
        self._server: uvicorn.Server | None = None

    async def serve(self, listening: socket.socket) -> None:
        """Answer until `stop`."""
        async with (
            LiveRun(self._folder, creds=self._settings.nats_creds or None) as live,
            AgentDesk(live.events, self._agent_setup) as desk,
        ):
            agents = AgentAccess(desk, session_keys(self._folder.path / FOLDER))
            app = gateway_app(live, Sources(self._folder.path), self._settings, agents)
            self._server = HttpServer(HttpConfig(app, self._settings))
            self._heed()
            await serve(self._server, listening)

    async def _agent_setup(self, log: Readable) -> AgentSetup:
        """Of the run as it is on now."""
        from serve_apps.agents.setup import agent_setup  # the model's tokenizer: most gateways need none

        events = [one.envelope.event async for one in log.read(1, about(log.run, "run", "run"))]
        settings = settings_in_force(events)
        return await agent_setup(settings, settings.run.blob_url or str(self._folder.blobs))

    def stop(self) -> None:
        """Requests under way are answered, `STOP_S` at most; none of them where it is asked again."""
        self._stop_asked += 1
        self._heed()

    def _heed(self) -> None:
        if self._server is not None:
            self._server.should_exit, self._server.force_exit = self._stop_asked > 0, self._stop_asked > 1


async def serve_until_signal(server: GatewayServer, listening: socket.socket) -> int:
    """Answer until SIGINT or SIGTERM; the first that came, for the caller to raise once all is closed. 0: none did."""
    came: list[int] = []

    def heed(number: int) -> None:
        came.append(number)
        server.stop()

    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, heed, number)
    try:
        await server.serve(listening)
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
    return came[0] if came else 0
