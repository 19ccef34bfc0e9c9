"""`Announcements`: wait for new events that few write and all engines follow, without a consumer of the server.

    writer   appends the event, then sends its subject once, beside the log       slime.<run>.announced.<type>.<entity>
    reader   subscribes to that, and looks into the log whenever it hears something, and every LOOK_S seconds

So the server keeps nothing for a reader, however many engines a run has. An announcement has the event's position, and
only says "look from there": one that is lost, forged or repeated costs a look, or LOOK_S seconds.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Iterable
from typing import Self

from schemas import subjects
from schemas.errors import AccessDenied, LogUnavailable
from schemas.registry import ANNOUNCED
from storage.jetstream.answer import Answer
from storage.jetstream.connection import Connection
from storage.jetstream.retry import Away
from storage.log import Append

LOOK_S = 10.0
"""Seconds between two looks without an announcement: a writer may be killed before it announces what it stored."""
_log = logging.getLogger(__name__)


_POSITION = 8
"""Bytes of the position in an announcement."""


async def announce(connection: Connection, run: str, appends: Iterable[Append], positions: Iterable[int]) -> None:
    """Announce those of the stored events that are to be announced."""
    for append, position in zip(appends, positions, strict=True):
        envelope = append.envelope
        if envelope.type in ANNOUNCED:
            with contextlib.suppress(Away, LogUnavailable):
                await connection.publish(subjects.announcement(run, envelope.subject), position.to_bytes(_POSITION))


class Announcements:
    """See the module. Within the context, `wait` returns when there may be new events under the filter."""

    def __init__(self, connection: Connection, inbox: str) -> None:
        self._connection, self._inbox = connection, inbox
        self._news, self._position, self._stack = asyncio.Event(), 0, contextlib.AsyncExitStack()

    @staticmethod
    async def of(
        connection: Connection, run: str, subject: str, stack: contextlib.AsyncExitStack
    ) -> "Announcements | None":
        """Return an entered instance, or None if a matching event may be unannounced, or the server refuses this."""
        inbox = subjects.announced_inbox(run, subject)
        if inbox is None:
            return None
        try:
            return await stack.enter_async_context(Announcements(connection, inbox))
        except AccessDenied as refusal:
            _log.info("reading with a consumer: %s", refusal)
            return None

    async def __aenter__(self) -> Self:
        """Raises AccessDenied, LogUnavailable."""
        connection, receiving = self._connection, self._connection.receiving
        try:
            await connection.persist(
                lambda: self._stack.enter_async_context(receiving(self._inbox, self._hear, self._news.set))
            )
            await connection.persist(lambda: connection.check_receiving(self._inbox))
        except BaseException:  # a cancellation too must not leave the subscription open
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def _hear(self, _: bytes, __: bytes, answer: Answer) -> None:
        self._position = max(self._position, int.from_bytes(answer.data[:_POSITION]))
        self._news.set()

    async def wait(self) -> int:
        """Wait for an announcement since the last call, for a lost connection, or for LOOK_S seconds.

        Return the last position that was announced since the last call, or 0. It may be wrong.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S * random.uniform(0.8, 1.2)):  # engines that start together spread out
                await self._news.wait()
        self._news.clear()
        position, self._position = self._position, 0
        return position
