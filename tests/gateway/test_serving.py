"""Serving over HTTP: what an end leaves open."""

from __future__ import annotations

import asyncio
import socket

import httpx
import pytest
from fastapi import FastAPI

from schemas.errors import EventTooLarge, LogUnavailable, RunIsOver, UnwritableEvent
from serve_apps.http.gateway.refusals import refusals
from serve_apps.http.gateway.serving import HttpConfig, HttpServer, serve
from serve_apps.http.gateway.settings import GatewaySettings


async def test_a_cancelled_server_leaves_no_connection_open() -> None:
    app = FastAPI()
    app.get("/")(lambda: "there")
    server = HttpServer(HttpConfig(app, GatewaySettings()))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        serving = asyncio.create_task(serve(server, listening))
        async with httpx.AsyncClient(timeout=10.0) as client:
            assert (await client.get(url)).json() == "there"
            serving.cancel()
            await asyncio.wait([serving])
            assert serving.cancelled()
            assert not server.server_state.connections
            with pytest.raises(httpx.TransportError):
                await client.get(url)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UnwritableEvent("no"), 400),
        (EventTooLarge("no"), 413),
        (LogUnavailable("no"), 503),
        (RunIsOver("no"), 409),
        (KeyError("no"), 500),
    ],
)
async def test_an_error_that_a_route_raises_is_answered_in_json(
    error: Exception, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    app = FastAPI()

    @app.get("/")
    async def fail() -> None:
        raise error

    refusals(app, GatewaySettings())
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        answer = await client.get("/")
    assert answer.status_code == status
    assert answer.json()["error"]
    logged = [record for record in caplog.records if record.getMessage().startswith(f"refused: {status}")]
    assert len(logged) == (status < 500), "what the client did wrong"
