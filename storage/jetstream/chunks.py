"""`Chunks`: read a server's bytes from the socket without asyncio's buffer.

asyncio's `StreamReader` copies all bytes into its buffer and out again in pieces. In a bulk read of a log this takes
longer than parsing the messages.
"""

import asyncio
from collections import deque

from nats.aio.transport import TcpTransport

READ_BYTES = 256 * 1024
"""Bytes per read of the socket, into memory that is reused: allocating it for each read costs more than the read."""
HELD_BYTES = 512 * 1024
"""Bytes that may wait for the reader; beyond that, reading pauses and the server waits."""


class Chunks(asyncio.BufferedProtocol):
    """Replaces the reader of a nats-py connection, once that reader is empty.

    All events except received bytes still go to the original protocol, so a connection ends as before.
    """

    def __init__(self, connection: TcpTransport) -> None:
        self._reader: asyncio.StreamReader = connection._io_reader
        self._transport: asyncio.Transport = connection._io_writer.transport
        self._read = memoryview(bytearray(READ_BYTES))
        self._chunks, self._held, self._more = deque[bytes](), 0, asyncio.Event()
        self._before: asyncio.BaseProtocol | None = None
        self._paused = False
        connection.read, connection.at_eof = self.read, self.at_eof

    async def read(self, size: int) -> bytes:
        """Read as `StreamReader.read` does, but a chunk may be larger than `size`."""
        if self._before is None:
            data = await self._reader.read(size)
            if len(data) < size and not self._reader.at_eof():  # the reader is empty
                self._before = self._transport.get_protocol()
                self._transport.set_protocol(self)
            return data
        while not self._chunks:
            if self._reader.at_eof() or self._reader.exception() is not None:
                return await self._reader.read(size)  # raises what ended the connection
            self._more.clear()
            await self._more.wait()
        chunk = self._chunks.popleft()
        self._held -= len(chunk)
        if self._paused and not self._chunks:
            self._paused = False
            self._transport.resume_reading()
        return chunk

    def at_eof(self) -> bool:
        """Return whether the connection has ended and all bytes were read."""
        return not self._chunks and self._reader.at_eof()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._read

    def buffer_updated(self, size: int) -> None:
        self._chunks.append(bytes(self._read[:size]))
        self._held += size
        if self._held > HELD_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._more.set()

    def eof_received(self) -> bool | None:
        assert isinstance(self._before, asyncio.Protocol)
        stays = self._before.eof_received()
        self._more.set()
        return stays

    def connection_lost(self, error: Exception | None) -> None:
        assert self._before is not None
        self._before.connection_lost(error)
        self._more.set()

    def pause_writing(self) -> None:
        assert self._before is not None
        self._before.pause_writing()

    def resume_writing(self) -> None:
        assert self._before is not None
        self._before.resume_writing()
