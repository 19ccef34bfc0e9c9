"""A run as its gateway reaches it: one connection while it is on, its log while it is off, and a new one after."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nats.errors
import pytest

from schemas.errors import AccessDenied, LogUnavailable, RunIsOver
from schemas.inbox import KIND, PROMPTS, REWARDS, SENDER, InboxReply
from serve_apps.http.gateway import live_run
from serve_apps.http.gateway.live_run import LiveRun, NotOn
from slime_events.client.inbox import ROOM, NobodyListens
from slime_events.core.run.run_folder import RunFolder
from slime_events.loop.prompts.offered import OFF_BYTES
from storage.jetstream.address import NatsAddress
from storage.nats.accounts import Access

TAKEN = InboxReply(True, ("g",))


class Closed:
    """A client or a log that knows whether it was closed."""

    def __init__(self) -> None:
        self.is_connected, self.max_payload, self.closed = True, 100_000, 0

    async def close(self) -> None:
        self.is_connected, self.closed = False, self.closed + 1


class Server:
    """Replace NATS. error: of the next connection. nobody: no conductor listens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_on, self.nobody, self.is_over, self.error = True, False, False, None
        self.clients, self.logs, self.calls = list[Closed](), list[Closed](), list[Any]()
        self.off, self.looked, self.opened, self.options = Closed(), list[Any](), list[Any](), list[Any]()
        fake = SimpleNamespace(connect=self.connect, errors=nats.errors)
        monkeypatch.setattr(live_run, "nats", fake)
        monkeypatch.setattr(live_run, "JetStreamLog", SimpleNamespace(open=self.open))
        monkeypatch.setattr(live_run, "live_address", self.address)
        monkeypatch.setattr(live_run, "open_run_log", self.open_off)
        monkeypatch.setattr(live_run, "ask_inbox", self.ask)
        monkeypatch.setattr(live_run, "offer", self.offer)
        monkeypatch.setattr(live_run, "conducted_until", self.conducted_until)

    def address(self, *looked: Any) -> NatsAddress | None:
        self.looked.append(looked)
        return NatsAddress(url="nats://here") if self.is_on else None

    async def connect(self, **options: Any) -> Closed:
        self.options.append(options)
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.clients.append(Closed())
        return self.clients[-1]

    async def open(self, *_: Any, **options: Any) -> Closed:
        assert options["create"] is False, "a gateway makes no log"
        self.logs.append(Closed())
        return self.logs[-1]

    @contextlib.asynccontextmanager
    async def open_off(self, *_: Any, creds: str | None = None) -> AsyncIterator[Any]:
        self.opened.append(creds)
        yield self.off

    async def ask(self, *args: Any) -> InboxReply:
        if self.nobody:
            raise NobodyListens("nobody")
        self.calls.append(args)
        return TAKEN

    async def offer(self, log: Any, data: bytes, sender: str, worker: str) -> InboxReply:
        self.calls.append((log, data, sender, worker))
        return TAKEN

    async def conducted_until(self, log: Any) -> None:
        assert log is (self.logs[-1] if self.is_on else self.off)
        if self.is_over:
            raise RunIsOver("over")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    run = RunFolder.create(tmp_path, "sim")
    run.settings.write_text('[run]\nrun = "sim"\n')
    return run


async def test_what_is_sent_has_its_sender_and_kind(server: Server, folder: RunFolder) -> None:
    async with LiveRun(folder, reply_s=7.0, creds="mine") as live:
        assert live.name == "sim"
        for kind in (PROMPTS, REWARDS):
            assert await live.send(b"x", "quiz", kind) == TAKEN
    assert [(call[0], call[1], call[3], call[4]) for call in server.calls] == [
        (server.clients[0], "sim", b"x", 7.0)
    ] * 2
    assert [call[5] for call in server.calls] == [{SENDER: "quiz", KIND: kind} for kind in (PROMPTS, REWARDS)]
    assert server.looked == [(folder.path, Access.GATEWAY, "mine")]
    assert server.options[0]["allow_reconnect"] is False, "a run whose server is another one has stopped this one"
    assert (server.clients[0].closed, server.logs[0].closed) == (1, 1)


async def test_one_connection_is_kept_while_it_holds(server: Server, folder: RunFolder) -> None:
    async with LiveRun(folder) as live:
        first = await live.events()
        assert await asyncio.gather(live.events(), live.events()) == [first, first]
        async with live.log() as log:
            assert log is first
        assert await live.max_bytes() == 100_000 - ROOM
        assert len(server.clients) == 1
        server.clients[0].is_connected = False
        again = await live.events()
        assert again is server.logs[1]
        assert (server.clients[0].closed, server.logs[0].closed) == (1, 1), "nothing of it stays open"
        assert (server.clients[1].closed, server.logs[1].closed) == (0, 0)


async def test_those_who_come_at_once_open_one_connection(server: Server, folder: RunFolder) -> None:
    async with LiveRun(folder) as live:
        logs = await asyncio.gather(*(live.events() for _ in range(3)))
    assert {id(each) for each in logs} == {id(server.logs[0])}
    assert len(server.clients) == 1


async def test_a_run_that_is_off_keeps_prompts_in_its_log(server: Server, folder: RunFolder) -> None:
    server.is_on = False
    async with LiveRun(folder, creds="mine") as live:
        assert await live.send(b"x", "quiz") == TAKEN
        assert server.calls == [(server.off, b"x", "quiz", "gateway")]
        for server.is_over in (False, True):
            with pytest.raises(LogUnavailable) as error:
                await live.send(b"x", "quiz", REWARDS)
            assert isinstance(error.value, RunIsOver) is server.is_over
        assert len(server.calls) == 1
        assert await live.max_bytes() == OFF_BYTES
        async with live.log() as log:
            assert log is server.off
        assert server.opened == ["mine"] * 4
        with pytest.raises(NotOn):
            await live.events()
    assert server.clients == []


async def test_a_run_that_nobody_conducts_keeps_them_too(server: Server, folder: RunFolder) -> None:
    server.nobody = True
    async with LiveRun(folder) as live:
        assert await live.send(b"x", "quiz") == TAKEN
        with pytest.raises(LogUnavailable):
            await live.send(b"x", "quiz", REWARDS)
    assert server.calls == [(server.logs[0], b"x", "quiz", "gateway")]
    assert server.opened == []


async def test_a_run_that_went_off_is_let_go_of_and_found_again(server: Server, folder: RunFolder) -> None:
    async with LiveRun(folder) as live:
        await live.events()
        server.clients[0].is_connected, server.is_on = False, False
        with pytest.raises(NotOn):
            await live.events()
        assert (server.clients[0].closed, server.logs[0].closed) == (1, 1)
        server.is_on = True
        assert await live.events() is server.logs[1]


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (OSError("refused"), LogUnavailable),
        (TimeoutError(), LogUnavailable),
        (nats.errors.NoServersError(), LogUnavailable),
        (nats.errors.Error("nats: 'Authorization Violation'"), AccessDenied),
    ],
)
async def test_a_server_that_does_not_let_it_in(
    server: Server, folder: RunFolder, error: Exception, raised: type[Exception]
) -> None:
    server.error = error
    async with LiveRun(folder) as live:
        with pytest.raises(raised):
            await live.events()
        server.error = None
        assert await live.events() is server.logs[0]
