"""A run's own server that dies while others read the run."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import FolderInUse, LogUnavailable
from slime_events.app.launch import log_server
from slime_events.app.launch.log_server import LogServer
from slime_events.core.run.run_folder import RunFolder
from storage.jetstream.log import JetStreamLog
from storage.nats import ports
from storage.nats.ports import port_of
from storage.nats.server import NatsServer
from storage.open_log import keeping_server, open_run_log


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setattr(log_server, "LOOK_S", 3600.0)  # only a test looks after the server
    return RunFolder.create(tmp_path, "demo")


async def kill(folder: RunFolder) -> int:
    """Its pid, once the server is gone."""
    server = NatsServer.attach(folder.nats)
    assert server is not None
    os.kill(server.pid, signal.SIGKILL)
    async with asyncio.timeout(10):
        while server.alive:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return server.pid


async def test_a_server_that_readers_start_first_becomes_the_runs(folder: RunFolder) -> None:
    own = LogServer(folder, "demo", None, note=lambda _: None)
    async with own.running(None) as url:
        await (await JetStreamLog.open(url, "demo")).close()
        before = await kill(folder)
        async with open_run_log(folder.path):
            reading = NatsServer.attach(folder.nats)
            await own.check()
        left = NatsServer.attach(folder.nats)
        assert reading is not None
        assert left is not None, "the last reader stopped it"
        assert (left.pid, left.record.temporary) == (reading.pid, False)
        assert left.pid != before
    assert not left.alive


def test_a_server_is_kept_from_one_reader_to_the_next(folder: RunFolder) -> None:
    def read() -> int:
        async def reading() -> int:
            async with open_run_log(folder.path):
                server = NatsServer.attach(folder.nats)
                assert server is not None
                return server.pid

        return asyncio.run(reading())

    async def make() -> None:
        async with LogServer(folder, "demo", None, note=lambda _: None).log(None, create=True):
            pass

    asyncio.run(make())
    with keeping_server(folder.path):
        assert read() == read()
        assert NatsServer.attach(folder.nats) is not None
    assert NatsServer.attach(folder.nats) is None, "the last reader stops it"
    with keeping_server(folder.path / "none"):
        pass


async def test_a_reader_that_is_starting_it_is_waited_for(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    start, refused = NatsServer.start, [FolderInUse("another is starting it")]

    async def refuse_once(*args: Any, **options: Any) -> NatsServer:
        if refused:
            raise refused.pop()
        return await start(*args, **options)

    own = LogServer(folder, "demo", None, note=lambda _: None)
    async with own.running(None):
        await kill(folder)
        monkeypatch.setattr(NatsServer, "start", refuse_once)
        await own.check()
        assert NatsServer.attach(folder.nats) is not None
    assert not refused


async def test_one_that_cannot_be_started_is_tried_again(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_server, "LOOK_S", 0.01)
    start, failures = NatsServer.start, [OSError("Too many open files") for _ in range(3)]

    async def fail_once(*args: Any, **options: Any) -> NatsServer:
        if failures:
            raise failures.pop()
        return await start(*args, **options)

    notes: list[str] = []
    async with LogServer(folder, "demo", None, notes.append).running(None) as url:
        monkeypatch.setattr(NatsServer, "start", fail_once)
        await kill(folder)
        await (await JetStreamLog.open(url, "demo")).close()
    assert not failures
    assert len([note for note in notes if "Too many open files" in note]) == 1, (
        "each message about an outage comes once"
    )


async def test_it_comes_back_where_the_runs_processes_look_for_it(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Take its port meanwhile, and start it elsewhere."""
    monkeypatch.setattr(ports, "FREED_S", 0.01)
    own = LogServer(folder, "demo", None, note=lambda _: None)
    async with own.running(None) as address:
        await (await JetStreamLog.open(address, "demo")).close()
        await kill(folder)
        with socket.create_server(("127.0.0.1", port_of(address.url))):
            with pytest.raises(LogUnavailable, match=f"port {port_of(address.url)}"):
                await own.check()
            async with open_run_log(folder.path) as reading:
                with pytest.raises(LogUnavailable, match=f"port {port_of(address.url)}"):
                    await own.check()
                assert await reading.position() == 0, "a server elsewhere is of use to its readers"
        await own.check()
        there = NatsServer.attach(folder.nats)
        assert there is not None
        assert (there.url, there.record.temporary) == (address.url, False)
