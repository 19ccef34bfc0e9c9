"""All back-ends, and JetStream with either client.

One NATS server and one cluster of three for the whole session, a new run for each test.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest

from storage.jetstream.client import PLAIN, PlainClient
from storage.jetstream.fast_client import FastClient
from storage.jetstream.log import JetStreamLog
from storage.log import EventLog
from storage.memory_log import MemoryLog
from storage.nats.server import NatsServer

_runs = itertools.count()
Open = Callable[[], Awaitable[EventLog]]


@dataclass(frozen=True)
class Backend:
    """Where the test's log is. url: None for memory."""

    url: str | None = None
    replicas: int = 1
    client: type = FastClient


@pytest.fixture(params=["memory", "jetstream", "plain", "cluster"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Backend:
    match request.param:
        case "memory":
            return Backend()
        case "jetstream":
            return Backend(request.getfixturevalue("server").url)
        case "plain":
            monkeypatch.setenv(PLAIN, "1")
            return Backend(request.getfixturevalue("server").url, client=PlainClient)
        case _:
            return Backend(request.getfixturevalue("cluster").url, replicas=3)


@pytest.fixture
async def opened(backend: Backend) -> AsyncIterator[Open]:
    """Opens the test's log once more, as another process would; the in-memory log is the same object each time."""
    run = f"test-{next(_runs)}"
    logs: list[EventLog] = []

    async def open_log() -> EventLog:
        if backend.url is not None:
            log = await JetStreamLog.open(backend.url, run, replicas=backend.replicas)
            assert type(log.connection.client) is backend.client
            logs.append(log)
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
