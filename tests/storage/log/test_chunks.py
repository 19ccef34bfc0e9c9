"""Bytes of a server come to the client whole and in order, and the end of its connection is what it is without them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from urllib.parse import urlparse

import pytest
from nats.aio.transport import TcpTransport

from storage.jetstream import chunks
from storage.jetstream.chunks import Chunks

PIECE = 32 * 1024
DATA = bytes(range(256)) * 40_000


@contextlib.asynccontextmanager
async def _connected(write: Callable[[asyncio.StreamWriter], None]) -> AsyncIterator[tuple[TcpTransport, Chunks]]:
    """A connection to a server that writes that and ends it."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        write(writer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        connection = TcpTransport()
        await connection.connect(urlparse(f"nats://127.0.0.1:{port}"), PIECE, 5)
        try:
            yield connection, Chunks(connection)
        finally:
            connection.close()


async def _all(connection: TcpTransport) -> bytes:
    read = list[bytes]()
    while not connection.at_eof():
        read.append(await connection.read(PIECE))
        await asyncio.sleep(0)  # others want to run too: chunks pile up
    return b"".join(read)


@pytest.mark.parametrize("held", [1, chunks.HELD_BYTES])
async def test_all_of_it_in_order(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "HELD_BYTES", held)
    async with _connected(lambda writer: writer.write(DATA)) as (connection, reader):
        async with asyncio.timeout(30):
            assert await _all(connection) == DATA
        assert reader._before is not None
        assert (reader._held, await connection.read(PIECE)) == (0, b"")


async def test_a_reader_that_is_away_is_not_drowned() -> None:
    async with _connected(lambda writer: writer.write(DATA * 4)) as (connection, reader):
        while reader._before is None:
            await connection.read(PIECE)
        await asyncio.sleep(0.3)
        assert reader._held <= chunks.HELD_BYTES + chunks.READ_BYTES
        async with asyncio.timeout(30):
            await _all(connection)


async def test_a_connection_that_breaks_raises_after_what_came() -> None:
    def write(writer: asyncio.StreamWriter) -> None:
        writer.write(b"the last words")

    async with _connected(write) as (connection, reader):
        assert await connection.read(PIECE) == b"the last words"
        reader.get_buffer(-1)[:4] = b"more"
        reader.buffer_updated(4)
        reader.connection_lost(ConnectionResetError("gone"))
        assert await connection.read(PIECE) == b"more"
        with pytest.raises(ConnectionResetError, match="gone"):
            await connection.read(PIECE)
