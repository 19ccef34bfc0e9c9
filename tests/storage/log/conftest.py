"""Both back-ends; one NATS server for the whole session, a new run for each test."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from storage.jetstream_log import JetStreamLog
from storage.log import EventLog
from storage.memory_log import MemoryLog
from storage.nats_server import NatsServer

_runs = itertools.count()
Open = Callable[[], Awaitable[EventLog]]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = asyncio.run(NatsServer.start(tmp_path_factory.mktemp("nats")))
    yield server
    asyncio.run(server.stop())


@pytest.fixture(params=["memory", "jetstream"])
def backend(request: pytest.FixtureRequest) -> str | None:
    """The server's URL, None for memory."""
    return str(request.getfixturevalue("server").url) if request.param == "jetstream" else None


@pytest.fixture
async def opened(backend: str | None) -> AsyncIterator[Open]:
    """Opens the test's log once more, as another process would; the in-memory log is the same object each time."""
    run = f"test-{next(_runs)}"
    logs: list[EventLog] = []

    async def open_log() -> EventLog:
        if backend is not None:
            logs.append(await JetStreamLog.open(backend, run))
        elif not logs:
            logs.append(MemoryLog(run))
        return logs[-1]

    yield open_log
    for log in logs:
        await log.close()


@pytest.fixture
async def log(opened: Open) -> EventLog:
    return await opened()


@pytest.fixture
async def stream(server: NatsServer) -> AsyncIterator[JetStreamLog]:
    """A log on JetStream, for what only it can suffer."""
    log = await JetStreamLog.open(server.url, f"test-{next(_runs)}")
    yield log
    await log.close()
