"""`Chunks`: what a server sends, as it comes off the socket.

asyncio's `StreamReader` copies all of it into its buffer, and out again in pieces: of a log that is read in bulk that
takes more than to take the messages apart.
"""

import asyncio
from collections import deque

from nats.aio.transport import TcpTransport

READ_BYTES = 256 * 1024
"""Off the socket at once, into memory that is kept: what asyncio takes of it for each read costs more than the read."""
HELD_BYTES = 512 * 1024
"""That wait for the reader; from here on the server waits."""


class Chunks(asyncio.BufferedProtocol):
    """Takes the place of the reader of a nats-py connection once that has given out all that it has. All but the bytes
    still goes to the protocol that was there, so that the end of a connection is what it was.
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
        """As `StreamReader.read`, but a chunk may be larger."""
        if self._before is None:
            data = await self._reader.read(size)
            if len(data) < size and not self._reader.at_eof():  # nothing is left there
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
        """Whether the connection has ended, and all was read."""
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
