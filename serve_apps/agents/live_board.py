"""`LiveBoard`: the session board of a run, read on whenever somebody looks at it."""

import asyncio

from slime_events.core.state.session_board import SessionBoard, read_board
from storage.log import Readable


class LiveBoard:
    """events: the run's log."""

    def __init__(self, events: Readable) -> None:
        self._events, self._lock = events, asyncio.Lock()
        self._board = SessionBoard()

    async def read(self) -> SessionBoard:
        """As the log has it now. Raises StorageError."""
        async with self._lock:
            await read_board(self._events, self._board)
        return self._board
