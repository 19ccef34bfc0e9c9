"""A console over runs in memory, and a client of it without a socket."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
from fastapi import FastAPI

from schemas.errors import RunNotFound
from serve_apps.http.console.app import console_app
from serve_apps.http.console.run_source import ListedRun
from serve_apps.http.gateway.settings import GatewaySettings
from serve_apps.http.gateway.sources import Sources
from slime_events.core.run.run_reader import OpenedRun
from slime_events.model.run_status import RunStatus
from tests.cli.small_run import RUN
from tests.lineage import opened

URL = f"/api/runs/{RUN}"


@dataclass
class Memory:
    """Runs in memory. on: whether they are on."""

    runs: dict[str, OpenedRun]
    on: bool = False
    opens: list[str] = field(default_factory=list)
    where: str = "in memory"

    async def listed(self) -> tuple[ListedRun, ...]:
        return tuple(
            ListedRun(run=run, status=RunStatus.FINISHED, steps=2, target=2, at=1.5, reason="") for run in self.runs
        )

    @contextlib.asynccontextmanager
    async def open(self, run: str) -> AsyncIterator[OpenedRun]:
        self.argument(run)
        self.opens.append(run)
        yield self.runs[run]
        self.opens.remove(run)

    def argument(self, run: str) -> str:
        if run not in self.runs:
            raise RunNotFound(f"no run {run!r}")
        return shlex.quote(run)

    async def is_on(self, opened: OpenedRun) -> bool:
        return self.on


@contextlib.asynccontextmanager
async def client_of(
    source: Memory, settings: GatewaySettings | None = None, sources: Sources | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    """Serve runs, and return a client."""
    app: FastAPI = console_app(source, settings or GatewaySettings(), sources)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost:8600") as client,
    ):
        yield client


async def small() -> Memory:
    """The small run."""
    return Memory({RUN: await opened.small()})


async def get(client: httpx.AsyncClient, path: str, **query: Any) -> dict[str, Any]:
    """Return the answer to a request, which is JSON."""
    answer = await client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    return dict(answer.json())
