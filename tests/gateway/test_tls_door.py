"""A connection until its TLS handshake is over: what becomes of it, and whose place it has meanwhile."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from serve_apps.http.gateway import tls_door
from serve_apps.http.gateway.connections import Connections
from serve_apps.http.gateway.tls_door import TlsDoor
from tests.gateway.door import Transport


class Secured(Transport):
    def __init__(self) -> None:
        super().__init__()
        self.protocol: Any = None

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol


class Http:
    """Record what follows the handshake."""

    def __init__(self) -> None:
        self.http: Any = None
        self.data = b""

    def connection_made(self, transport: Any) -> None:
        assert transport.protocol is self
        self.http = transport

    def data_received(self, data: bytes) -> None:
        assert data
        self.data += data


class Scene:
    """outcome: of the handshake, once it is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shared, self.plain, self.http = Connections(4, 1.0), Transport(), list[Http]()
        self.outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.options: dict[str, Any] = {}
        monkeypatch.setattr(tls_door, "time", SimpleNamespace(monotonic=lambda: 10.0))
        monkeypatch.setattr(asyncio.get_running_loop(), "start_tls", self.start_tls)
        self.door = TlsDoor(self.shared, 5.0, "context", self.make)  # type: ignore[arg-type]

    async def start_tls(self, *args: Any, **more: Any) -> Any:
        self.options = {"given": args, **more}
        return await self.outcome

    def make(self) -> Any:
        self.http.append(Http())
        return self.http[-1]

    async def end(self, outcome: Any) -> None:
        if isinstance(outcome, Exception):
            self.outcome.set_exception(outcome)
        else:
            self.outcome.set_result(outcome)
        await settled()


async def settled() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


async def test_after_the_handshake_it_is_http_with_what_came_early(scene: Scene) -> None:
    scene.door.connection_made(scene.plain)
    assert scene.plain.paused, "the handshake reads, and nobody else"
    assert (scene.door.address, len(scene.shared)) == ("10.0.0.1", 1)
    await settled()
    assert scene.options["given"] == (scene.plain, scene.door, "context")
    assert (scene.options["server_side"], scene.options["ssl_handshake_timeout"]) == (True, 5.0)
    for part in (b"GET", b" /"):
        scene.door.data_received(part)
    secured = Secured()
    await scene.end(secured)
    (http,) = scene.http
    assert (http.http, secured.protocol, http.data) == (secured, http, b"GET /")
    assert len(scene.shared) == 0, "its place is that of what comes after it"
    assert not scene.plain.aborted


async def test_nothing_that_came_early_is_nothing(scene: Scene) -> None:
    scene.door.connection_made(scene.plain)
    await settled()
    await scene.end(Secured())
    assert scene.http[0].data == b""


@pytest.mark.parametrize("error", [OSError("reset"), EOFError(), TimeoutError()])
async def test_a_handshake_that_fails_ends_the_connection(scene: Scene, error: Exception) -> None:
    scene.door.connection_made(scene.plain)
    await settled()
    await scene.end(error)
    assert (scene.plain.aborted, len(scene.shared), scene.http) == (True, 0, [])


async def test_who_left_during_it_leaves_no_http(scene: Scene) -> None:
    for gone in (None, Secured()):
        plain, scene.outcome = Transport(), asyncio.get_running_loop().create_future()
        if gone is not None:
            gone.close()
        scene.door.connection_made(plain)
        await settled()
        await scene.end(gone)
        assert (plain.aborted, len(scene.shared), scene.http) == (True, 0, [])


async def test_it_has_the_seconds_of_a_head(scene: Scene) -> None:
    scene.door.connection_made(scene.plain)
    scene.door.look(15.0)
    assert not scene.plain.aborted
    scene.door.look(15.01)
    assert scene.plain.aborted
    assert len(scene.shared) == 0
    scene.outcome.cancel()


async def test_a_connection_that_is_lost_leaves_its_place(scene: Scene) -> None:
    scene.door.connection_made(scene.plain)
    scene.door.connection_lost(None)
    assert len(scene.shared) == 0
    scene.outcome.cancel()


async def test_one_that_is_too_many_shakes_no_hands(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scene.shared, "add", lambda connection: scene.plain.abort())
    scene.door.connection_made(scene.plain)
    await settled()
    assert scene.options == {}


async def test_a_socket_without_an_address_is_taken(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scene.plain, "get_extra_info", lambda _: None)
    scene.door.connection_made(scene.plain)
    assert scene.door.address == ""
    scene.outcome.cancel()
