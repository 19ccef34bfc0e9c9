"""A server that does not read what is sent to it: nobody waits for it without an end."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from storage.jetstream import connection as connection_module
from storage.jetstream.connection import Connection
from storage.jetstream.retry import log_wait
from storage.nats.server import NatsServer
from tests.storage.waiting import until

INFO = b"INFO " + json.dumps({"version": "2.12.0", "headers": True, "max_payload": 1 << 20}).encode() + b"\r\n"
MORE_THAN_IS_TAKEN = b"\r\n" * (8 << 20)
"""Bytes that do not fit between two sockets."""


class Deaf:
    """Greets everybody who connects, and reads no further."""

    def __init__(self) -> None:
        self.greeted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(INFO)
        await reader.readuntil(b"PING\r\n")
        writer.write(b"PONG\r\n")
        self.greeted.put_nowait(writer)


@pytest.fixture
def deaf() -> Deaf:
    return Deaf()


@pytest.fixture
async def connection(deaf: Deaf, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Connection]:
    """To it, with more under way than it will ever take."""
    monkeypatch.setattr(connection_module, "FLUSH_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        server = await asyncio.start_server(deaf.greet, sock=listening)
        url = f"nats://127.0.0.1:{listening.getsockname()[1]}"
        connection = await Connection.open(url, deadline_s=30.0, retry_s=30.0, on_wait=log_wait)
        connection.client._transport.write(MORE_THAN_IS_TAKEN)
        yield connection
        server.close()


async def test_a_connection_to_it_is_closed(connection: Connection) -> None:
    await asyncio.wait_for(connection.close(), 30.0)
    assert connection.client.is_closed


async def test_a_connection_to_it_that_breaks_is_made_anew(deaf: Deaf, connection: Connection) -> None:
    (await deaf.greeted.get()).write_eof()
    await asyncio.wait_for(deaf.greeted.get(), 30.0)
    await connection.close()


async def test_one_whose_server_has_gone_ends_though_its_cancellation_is_lost(tmp_path: Path) -> None:
    server = await NatsServer.start(tmp_path / "nats")
    connection = await Connection.open(server.url, deadline_s=30.0, retry_s=30.0, on_wait=log_wait)
    await server.stop()
    await until(lambda: connection.client.is_reconnecting)
    (again,) = (task for task in asyncio.all_tasks() if "_attempt_reconnect" in repr(task))

    async def close() -> None:
        """Close like nats-py's client of a connection that is refused at the moment it is cancelled."""

    connection.client.close = close
    await connection.close()
    await asyncio.wait_for(asyncio.wait({again}), 30.0)
