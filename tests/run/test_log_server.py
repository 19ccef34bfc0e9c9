"""A run's own server that dies while others read the run."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import FolderInUse
from slime_events.app.launch import log_server
from slime_events.app.launch.log_server import LogServer
from slime_events.core.run.run_folder import RunFolder
from storage.jetstream.log import JetStreamLog
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
    server = LogServer(folder, "demo", None, note=lambda _: None)
    async with server.running(None) as url:
        await (await JetStreamLog.open(url, "demo")).close()
        before = await kill(folder)
        async with open_run_log(folder.path):
            reading = NatsServer.attach(folder.nats)
            await server.check()
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

    server = LogServer(folder, "demo", None, note=lambda _: None)
    async with server.running(None):
        await kill(folder)
        monkeypatch.setattr(NatsServer, "start", refuse_once)
        await server.check()
        assert NatsServer.attach(folder.nats) is not None
    assert not refused


async def test_one_that_cannot_be_started_is_tried_again(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_server, "LOOK_S", 0.01)
    monkeypatch.setattr(log_server, "AGAIN_S", 0.01)
    start, failures = NatsServer.start, [OSError("Too many open files")]

    async def fail_once(*args: Any, **options: Any) -> NatsServer:
        if failures:
            raise failures.pop()
        return await start(*args, **options)

    notes: list[str] = []
    async with LogServer(folder, "demo", None, notes.append).running(None) as url:
        monkeypatch.setattr(NatsServer, "start", fail_once)
        await kill(folder)
        await (await JetStreamLog.open(url, "demo")).close()
    assert [note for note in notes if "Too many open files" in note]
