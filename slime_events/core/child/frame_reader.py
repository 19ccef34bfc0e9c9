"""`FrameReader`: reads the frames of a stream in an event loop."""

import asyncio

from slime_events.core.child.frames import LENGTH, MOST_BYTES, PeerEnded, payload_length


class FrameReader:
    """Payloads of a stream. After a cancellation or a timeout, the next read continues at the same position."""

    def __init__(self, reader: asyncio.StreamReader, most: int = MOST_BYTES) -> None:
        self._reader, self._most = reader, most
        self._length: int | None = None

    async def next(self, limit_s: float | None = None) -> bytes:
        """Return the next payload. Raises PeerEnded at the end, TimeoutError after `limit_s` seconds."""
        if limit_s is None:
            return await self._next()
        try:
            async with asyncio.timeout(limit_s):
                return await self._next()
        except TimeoutError:
            async with asyncio.timeout(0.0):  # it may have arrived while the machine was paused
                return await self._next()

    async def _next(self) -> bytes:
        try:
            if self._length is None:
                self._length = payload_length(await self._reader.readexactly(LENGTH.size), self._most)
            payload = await self._reader.readexactly(self._length)
        except PeerEnded:
            raise
        except (asyncio.IncompleteReadError, OSError) as error:
            raise PeerEnded(str(error)) from error
        self._length = None
        return payload
