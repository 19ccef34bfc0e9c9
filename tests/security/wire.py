"""A gateway behind a real socket, served as the product serves it, and requests to it byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI

from serve_apps.http.gateway.agents import AgentAccess, AgentDesk, SessionKeys
from serve_apps.http.gateway.app import gateway_app
from serve_apps.http.gateway.listening import bound
from serve_apps.http.gateway.serving import HttpConfig, HttpServer
from serve_apps.http.gateway.settings import GatewaySettings
from serve_apps.http.gateway.sources import Sources
from storage.log import EventLog
from tests.agents.stage import RULES, setup
from tests.gateway.test_gateway import SimulatedRun
from tests.simulation.simulation import Simulation, make_plan

ANSWER_S = 20.0


class Run(SimulatedRun):
    """A simulated run that takes prompts, and whose rollouts agents make."""

    def __init__(self, folder: Path) -> None:
        plan = make_plan(agents=True, steps=3, groups=1, samples=2, in_prompt_order=False)
        self.simulation = Simulation(folder, plan)
        super().__init__(self.simulation)
        self.sources, self.keys = Sources(folder), SessionKeys(b"secret")

    async def events(self) -> EventLog:
        return self.simulation.log

    @contextlib.asynccontextmanager
    async def app(self, settings: GatewaySettings) -> AsyncIterator[FastAPI]:
        async def make(_: EventLog) -> object:
            return setup(RULES)

        async with AgentDesk(self.events, make) as desk:  # type: ignore[arg-type]
            yield gateway_app(self, self.sources, settings, AgentAccess(desk, self.keys))


@dataclass(frozen=True, slots=True)
class Wire:
    """Hold where a gateway listens. trust: of its certificate, if it has one."""

    host: str
    port: int
    trust: ssl.SSLContext | None = None

    @property
    def authority(self) -> str:
        """Return its name for the `Host` header of a client."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def ask(self, data: bytes) -> tuple[int, bytes]:
        """Status and the rest of the first answer to these bytes; 0 where the connection was closed without one."""
        reader, writer = await asyncio.open_connection(self.host, self.port, ssl=self.trust)
        try:
            async with asyncio.timeout(ANSWER_S):
                with contextlib.suppress(ConnectionError):
                    writer.write(data)
                    await writer.drain()
                head = b""
                with contextlib.suppress(ConnectionError):
                    head = await reader.read(1 << 16)
                return (int(head.split(b" ", 2)[1]), head) if head.startswith(b"HTTP/") else (0, head)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()

    def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        token: str | None = None,
        headers: tuple[str, ...] = (),
        host: str | None = None,
        length: int | None = None,
    ) -> bytes:
        """The bytes of a request. headers: further lines. length: instead of the body's own."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.authority if host is None else host}", "Connection: close"]
        lines += [f"Authorization: Bearer {token}"] if token is not None else []
        lines += headers
        if body and not any(line.lower().startswith("content-type") for line in headers):
            lines += ["Content-Type: application/json"]
        if (body or length is not None) and not any(line.lower().startswith("transfer-enc") for line in headers):
            lines += [f"Content-Length: {len(body) if length is None else length}"]
        return "\r\n".join((*lines, "", "")).encode("latin-1") + body


@contextlib.asynccontextmanager
async def served(app: FastAPI, settings: GatewaySettings, trust: ssl.SSLContext | None = None) -> AsyncIterator[Wire]:
    """While inside, the app answers. settings: with port 0 for any."""
    with bound(settings) as listening:
        server = HttpServer(HttpConfig(app, settings))
        serving = asyncio.create_task(server.serve([listening]))
        try:
            while not server.started:  # noqa: ASYNC110  uvicorn says it no other way
                await asyncio.sleep(0.01)
            yield Wire(*listening.getsockname()[:2], trust)
        finally:
            server.should_exit = True
            await serving
