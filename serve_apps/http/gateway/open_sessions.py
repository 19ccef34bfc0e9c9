"""`OpenSessions`: reads the open sessions of a source, and whether the run has ended, from the log of a run that may be
off.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from schemas.ids import session_name
from schemas.outside_sessions import ListedSession, SessionList
from schemas.sessions import SessionOpened
from serve_apps.http.gateway.agents import Capability, SessionKeys
from serve_apps.http.gateway.refusals import Refused
from serve_apps.rollouts.agents.sessions import INTERRUPTED, RESUME_S
from slime_events.core.sessions.board import SessionBoard, read_board
from slime_events.core.sessions.session import read_session
from storage.log import Readable

PAGE = 50
"""Most sessions in one answer, which reads the turns of each."""


class OpenSessions:
    """Lists open sessions. log: opens the run's log, whether the run is on or off."""

    def __init__(self, log: Callable[[], AbstractAsyncContextManager[Readable]], keys: SessionKeys) -> None:
        self._log, self._keys = log, keys
        self._board, self._lock = SessionBoard(), asyncio.Lock()

    async def of(self, sender: str, after: str) -> SessionList:
        """Return a page of a source's open sessions. after: last name of the page before. Raises StorageError."""
        async with self._lock, self._log() as log:
            await read_board(log, self._board)
            board = self._board
            opened = [event for event in board.open.values() if event.sender == sender]
            by_name = {session_name(event.sample, event.attempt): event for event in opened}
            names = sorted(name for name in by_name if name > after)
            page = [await self._listed(log, name, by_name[name]) for name in names[:PAGE]]
        return SessionList(
            page, next=names[PAGE - 1] if len(names) > PAGE else "", over=board.over, interrupted=board.interrupted
        )

    async def _listed(self, log: Readable, name: str, opened: SessionOpened) -> ListedSession:
        session, now = await read_session(log, opened.sample), time.time_ns()
        return ListedSession(
            session=name,
            sample=opened.sample,
            group=opened.group,
            attempt=opened.attempt,
            key=opened.key,
            control_key=self._keys.of(name, Capability.CONTROL),
            opened_at=self._board.opened_at[opened.sample] / 1e9,
            idle_s=(now - session.moved_at) / 1e9,
            turns=len(session.turns),
            under_way=len(session.open),
        )

    async def check_over(self) -> None:
        """Raise Refused if the run has ended. Raises StorageError."""
        async with self._lock, self._log() as log:
            await read_board(log, self._board)
            if self._board.interrupted:
                raise Refused(503, INTERRUPTED, {"Retry-After": f"{RESUME_S:.0f}"})
            if self._board.over:
                raise Refused(409, "the run is over: its sessions take no more requests")
