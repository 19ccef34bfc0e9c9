"""All back-ends, and JetStream with either client.

One NATS server and one cluster of three for all tests of tests/storage, a new run for each test.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import nats
import pytest
from nats.js.errors import NotFoundError

from schemas.subjects import stream_name
from storage.jetstream.client import PLAIN, PlainClient
from storage.jetstream.fast_client import FastClient
from storage.jetstream.log import JetStreamLog
from storage.log import EventLog
from storage.memory_log import MemoryLog
from storage.nats.server import NatsServer
from tests.storage.log.forgetful import LATER, ForgetfulLog

_runs = itertools.count()
Open = Callable[[], Awaitable[EventLog]]


@dataclass(frozen=True)
class Backend:
    """Describe where the log of a test is. url: None for memory."""

    url: str | None = None
    replicas: int = 1
    client: type = FastClient
    archive: str | None = None


@pytest.fixture(params=["memory", "jetstream", "plain", "cluster", "forgetful"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Backend:
    match request.param:
        case "memory":
            return Backend()
        case "jetstream":
            return Backend(request.getfixturevalue("server").url)
        case "forgetful":
            return Backend(request.getfixturevalue("server").url, archive=str(tmp_path / "archive"))
        case "plain":
            monkeypatch.setenv(PLAIN, "1")
            return Backend(request.getfixturevalue("server").url, client=PlainClient)
        case _:
            return Backend(request.getfixturevalue("cluster").url, replicas=3)


@pytest.fixture
async def opened(backend: Backend, request: pytest.FixtureRequest) -> AsyncIterator[Open]:
    """Opens the test's log once more, as another process would; the in-memory log is the same object each time."""
    run = f"test-{next(_runs)}"
    logs: list[EventLog] = []
    one_by_one = asyncio.Lock()
    queues = {LATER} if "consume(" in inspect.getsource(request.function) else set()

    async def open_log() -> EventLog:
        if backend.url is not None:
            kind = ForgetfulLog if backend.archive else JetStreamLog
            log = await kind.open(backend.url, run, replicas=backend.replicas, archive_url=backend.archive)
            if isinstance(log, ForgetfulLog):
                log.archive, log.queues, log.one_by_one = str(backend.archive), queues, one_by_one
            assert type(log.connection.client) is backend.client
            logs.append(log)
        elif not logs:
            logs.append(MemoryLog(run))
        return logs[-1]

    yield open_log
    for log in logs:
        await log.close()
    if backend.url is not None:
        await remove_stream(backend.url, run)


async def remove_stream(url: str, run: str) -> None:
    """Remove a run's log from its servers, if it is there: the copies of a cluster send heartbeats as long as it is."""
    client = await nats.connect(url.split(","))
    with contextlib.suppress(NotFoundError):
        await client.jetstream().delete_stream(stream_name(run))
    await client.close()


@pytest.fixture
async def log(opened: Open) -> EventLog:
    return await opened()


@pytest.fixture
async def stream(server: NatsServer) -> AsyncIterator[JetStreamLog]:
    """A log on JetStream, for what only it can suffer."""
    run = f"test-{next(_runs)}"
    log = await JetStreamLog.open(server.url, run)
    yield log
    await log.close()
    await remove_stream(server.url, run)
