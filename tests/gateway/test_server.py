"""A gateway behind its socket: when it answers, what it leaves of the process's signals, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest
from fastapi import FastAPI

from schemas.workers import WorkerJoined
from serve_apps.http.gateway import actor, serving
from serve_apps.http.gateway.actor import GatewayActor
from serve_apps.http.gateway.agents import AgentDesk
from serve_apps.http.gateway.connections import RESERVE
from serve_apps.http.gateway.serving import GatewayServer, HttpConfig, HttpServer, serve_until_signal
from serve_apps.http.gateway.settings import GatewaySettings
from serve_apps.rollouts.agents import setup
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_address import RunAddress
from slime_events.core.run.run_folder import RunFolder
from storage.jetstream.address import NatsAddress
from storage.memory_log import MemoryLog
from storage.nats.ports import free_port
from tests import made

SETTINGS = GatewaySettings(port=0)


class Live:
    """Replace a run's connection. made: with which credentials, each."""

    credentials: list[str | None]

    def __init__(self, folder: RunFolder, creds: str | None = None) -> None:
        self.name, self.log_ = "sim", MemoryLog("sim")
        self.credentials.append(creds)

    async def __aenter__(self) -> Live:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def events(self) -> MemoryLog:
        return self.log_

    @contextlib.asynccontextmanager
    async def log(self) -> AsyncIterator[MemoryLog]:
        yield self.log_


@pytest.fixture(autouse=True)
def live(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The credentials that runs are reached with."""
    kind = type("LiveOf", (Live,), {"credentials": []})
    monkeypatch.setattr(serving, "LiveRun", kind)
    return kind.credentials  # type: ignore[attr-defined,no-any-return]


def socket_of() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


async def answered(client: httpx.AsyncClient, url: str, task: asyncio.Task[Any]) -> httpx.Response:
    while True:
        assert not task.done(), task.exception()
        with contextlib.suppress(httpx.TransportError):
            return await client.get(url)
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def serving_of(server: GatewayServer) -> AsyncIterator[tuple[httpx.Response, asyncio.Task[None]]]:
    """Its answer, and its task, which ends inside."""
    with socket_of() as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/healthz"
        task = asyncio.create_task(server.serve(listening))
        async with asyncio.timeout(20.0), httpx.AsyncClient() as client:
            yield await answered(client, url, task), task
            await asyncio.wait([task])
            with pytest.raises(httpx.TransportError):
                await client.get(url)


async def test_it_answers_until_it_is_stopped_and_leaves_signals_alone(tmp_path: Path, live: list[str | None]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    server = GatewayServer(RunFolder(tmp_path, "sim"), SETTINGS)
    async with serving_of(server) as (answer, task):
        assert answer.json() == {"run": "sim"}
        assert "server" not in answer.headers
        assert signal.getsignal(signal.SIGTERM) is before
        server.stop()
    assert task.exception() is None
    assert live == [None]
    assert (tmp_path / "sim" / "gateway").is_dir()


async def test_it_has_the_credentials_that_it_was_given(tmp_path: Path, live: list[str | None]) -> None:
    server = GatewayServer(RunFolder(tmp_path, "sim"), msgspec.structs.replace(SETTINGS, nats_creds="mine"))
    async with serving_of(server):
        server.stop()
    assert live == ["mine"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it_and_is_told(tmp_path: Path, number: int) -> None:
    server = GatewayServer(RunFolder(tmp_path, "sim"), SETTINGS)
    with socket_of() as listening:
        task = asyncio.create_task(serve_until_signal(server, listening))
        async with asyncio.timeout(20.0), httpx.AsyncClient() as client:
            await answered(client, f"http://127.0.0.1:{listening.getsockname()[1]}/healthz", task)
            os.kill(os.getpid(), number)
            assert await task == number
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    assert handlers == {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


async def test_without_a_signal_none_is_told(tmp_path: Path) -> None:
    server = GatewayServer(RunFolder(tmp_path, "sim"), SETTINGS)
    server.stop()
    with socket_of() as listening:
        assert await serve_until_signal(server, listening) == 0


async def test_who_asks_twice_waits_for_no_request(tmp_path: Path) -> None:
    server = GatewayServer(RunFolder(tmp_path, "sim"), SETTINGS)
    async with serving_of(server):
        assert server._server is not None
        assert not server._server.force_exit
        server.stop()
        assert (server._server.should_exit, server._server.force_exit) == (True, False)
        server.stop()
        assert server._server.force_exit


async def test_one_that_was_stopped_before_ends_at_once(tmp_path: Path) -> None:
    server = GatewayServer(RunFolder(tmp_path, "sim"), SETTINGS)
    server.stop()
    with socket_of() as listening:
        async with asyncio.timeout(20.0):
            await server.serve(listening)


@pytest.mark.parametrize(("blobs", "url"), [("s3://bucket", "s3://bucket"), (None, "blobs")])
async def test_agents_are_set_up_as_the_run_s_log_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blobs: str | None, url: str
) -> None:
    folder, calls, desks = RunFolder(tmp_path, "sim"), list[Any](), list[Any]()
    settings = TrainSettings()
    settings = msgspec.structs.replace(settings, run=msgspec.structs.replace(settings.run, blob_url=blobs, run="sim"))

    async def agent_setup(*args: Any) -> str:
        calls.append(args)
        return "made"

    monkeypatch.setattr(setup, "agent_setup", agent_setup)
    monkeypatch.setattr(serving, "AgentDesk", lambda events, make: desks.append(make) or AgentDesk(events, make))
    server = GatewayServer(folder, SETTINGS)
    server.stop()
    with socket_of() as listening:
        await server.serve(listening)
    log = MemoryLog("sim")
    started = made.started(settings)
    await Participant(log, "launcher").append([started])
    assert await desks[0](log) == "made"
    ((run_settings, where),) = calls
    assert run_settings.run.run == "sim"
    assert where == (url if blobs else str(folder.blobs))


def test_a_server_has_room_and_deadlines_as_it_is_told() -> None:
    own = GatewaySettings(max_connections=10, address_share=0.5, head_s=3.0, keep_alive_s=7)
    config = HttpConfig(FastAPI(), own)
    assert (config.connections.most, config.connections.per_address) == (10, 5)
    assert config.deadlines == own.deadlines
    assert config.timeout_keep_alive == 7
    assert RESERVE > 0


async def test_an_app_is_begun_before_it_is_asked() -> None:
    begun: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        begun.append("begun")
        yield
        begun.append("ended")

    app = FastAPI(lifespan=lifespan)
    app.get("/")(lambda: begun[-1])
    server = HttpServer(HttpConfig(app, SETTINGS))
    with socket_of() as first, socket_of() as other:
        task = asyncio.create_task(server.serve([first, other]))
        async with asyncio.timeout(20.0), httpx.AsyncClient() as client:
            for listening in (first, other):
                url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
                assert (await answered(client, url, task)).json() == "begun"
            server.should_exit = True
            await task
    assert begun == ["begun", "ended"]


@contextlib.asynccontextmanager
async def role(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[asyncio.Task[None], Any, str]]:
    """The gateway as a role of a run: its task, the run's log, and where it answers once it does."""
    log, url = MemoryLog("sim"), f"http://127.0.0.1:{free_port()}"

    @contextlib.asynccontextmanager
    async def join(_: RunAddress, name: str) -> AsyncIterator[Participant]:
        yield Participant(log, name)

    monkeypatch.setattr(actor, "join_run", join)
    monkeypatch.setattr(actor, "LAST_S", 0.01)
    await Participant(log, "launcher").append([made.started()])
    settings = made.settings(gateway={"gateway": url.removeprefix("http://")})
    address = RunAddress(
        run="sim", nats=NatsAddress(url=""), folder=str(folder / "sim"), blob_url="", archive_url="", weights_url=""
    )
    async with asyncio.timeout(20.0), httpx.AsyncClient() as client:
        task = asyncio.create_task(GatewayActor().run(address, settings))
        await answered(client, f"{url}/healthz", task)
        yield task, log, url
        await asyncio.wait([task])
        with pytest.raises(httpx.TransportError):
            await client.get(f"{url}/healthz")


async def test_a_run_s_own_gateway_is_there_to_the_run_s_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signals, ended = signal.getsignal(signal.SIGTERM), list[float]()
    async with role(tmp_path, monkeypatch) as (task, log, url):
        (joined,) = [recorded.envelope.event for recorded in log.events_after(1)]
        assert isinstance(joined, WorkerJoined)
        assert (joined.role, joined.facts) == ("gateway", {"url": url})
        assert 0.0 <= joined.seconds["ready"] < 60.0
        assert signal.getsignal(signal.SIGTERM) is signals, "the role's process has its own"
        for _ in range(20):
            await asyncio.sleep(0)
        assert not task.done()
        ended.append(time.monotonic())
        over = made.finished(events=2)
        await Participant(log, "conductor").append_fenced(over)
    assert task.exception() is None


async def test_those_who_follow_hear_of_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        await real(0)

    names = {name: getattr(asyncio, name) for name in ("create_task", "wait", "FIRST_COMPLETED")}
    monkeypatch.setattr(actor, "asyncio", SimpleNamespace(sleep=sleep, **names))
    async with role(tmp_path, monkeypatch) as (_, log, _):
        over = made.finished(events=2)
        await Participant(log, "conductor").append_fenced(over)
    assert waited == [0.01]


async def test_a_role_that_is_cancelled_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = asyncio.all_tasks()
    async with role(tmp_path, monkeypatch) as (task, _, _):
        task.cancel()
    assert task.cancelled()
    assert asyncio.all_tasks() == before
