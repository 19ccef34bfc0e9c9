"""`LiveBoard`: the session board of a run, brought up to date at each read."""

import asyncio

from slime_events.core.sessions.board import SessionBoard, read_board
from storage.log import Readable


class LiveBoard:
    def __init__(self, events: Readable) -> None:
        self._events, self._lock = events, asyncio.Lock()
        self._board = SessionBoard()

    async def read(self) -> SessionBoard:
        """Return the board with all events of the log. Raises StorageError."""
        async with self._lock:
            await read_board(self._events, self._board)
        return self._board
