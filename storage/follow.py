"""`Follower`, `RecordFollower`: read a growing log in lists of what has arrived since the last call."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Generic, Self, TypeVar

from storage.cancellation import end_all
from storage.log import ForeignRecord, Readable, Recorded, Subjects

RecordT = TypeVar("RecordT", Recorded, Recorded | ForeignRecord)

READ_AHEAD_BYTES = 64 * 1024 * 1024


class _Follower(Generic[RecordT]):
    """Reads ahead in a task, so that a busy reader catches up in one call.

    read_ahead, read_ahead_bytes: events and bytes that may wait for the reader. every_s: seconds between reads, for a
    reader that is not urgent: reading all new events at once costs reader and server far less than a wake-up per event.
    """

    def __init__(
        self,
        log: Readable,
        start: int = 1,
        subject: Subjects = None,
        *,
        read_ahead: int = 10_000,
        read_ahead_bytes: int = READ_AHEAD_BYTES,
        every_s: float | None = None,
    ) -> None:
        self._log, self._start, self._subject, self._every_s = log, start, subject, every_s
        self._waiting: list[RecordT] = []
        self._read_ahead = read_ahead
        self._bytes, self._read_ahead_bytes = 0, read_ahead_bytes
        self._arrived, self._room = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._history = 0
        self._seen = start - 1

    @property
    def caught_up(self) -> bool:
        """Whether all events that were in the log when this follower began have been returned."""
        return self._seen >= self._history

    def is_history(self, recorded: RecordT) -> bool:
        """Return whether the event was in the log before this follower began."""
        return recorded.position <= self._history

    async def __aenter__(self) -> Self:
        self._history = await self._newest()
        self._task = asyncio.create_task(self._read(), name=f"follow-{self._subject or 'all'}")
        self._task.add_done_callback(lambda _: self._arrived.set())
        return self

    async def _newest(self) -> int:
        raise NotImplementedError

    def _records(self, *, follow: bool) -> AsyncIterator[RecordT]:
        raise NotImplementedError

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            await end_all(self._task)

    async def _read(self) -> None:
        if self._every_s is None:
            await self._put(self._records(follow=True))
            return
        while True:
            await self._put(self._records(follow=False))
            await asyncio.sleep(self._every_s)

    async def _put(self, events: AsyncIterator[RecordT]) -> None:
        async for recorded in events:
            self._start = recorded.position + 1
            self._waiting.append(recorded)
            self._bytes += len(recorded.data)
            self._arrived.set()
            if len(self._waiting) >= self._read_ahead or self._bytes >= self._read_ahead_bytes:
                self._room.clear()
                await self._room.wait()

    async def next(self, wait_s: float) -> list[RecordT]:
        """Return all events since the last call, or an empty list after `wait_s` seconds without any.

        Raises the reader's error (LogUnavailable, a SchemaError) after all events before it were returned.
        """
        if self._task is None:
            raise RuntimeError("enter the follower before reading from it")
        if not self._waiting and not self._task.done():
            self._arrived.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):  # wait_for may lose a cancellation in Python 3.11
                    await self._arrived.wait()
        if not self._waiting:
            if self._task.done():
                self._task.result()
            return []
        events, self._waiting, self._bytes = self._waiting, [], 0
        self._room.set()
        self._seen = events[-1].position
        return events


class Follower(_Follower[Recorded]):
    """Follows the events of a log, all or those of filters; see `_Follower`."""

    async def _newest(self) -> int:
        if self._subject is None:
            return await self._log.position()
        filters = (self._subject,) if isinstance(self._subject, str) else self._subject
        newest = await asyncio.gather(*map(self._log.last, filters))
        return max((recorded.position for recorded in newest if recorded), default=0)

    def _records(self, *, follow: bool) -> AsyncIterator[Recorded]:
        return self._log.read(self._start, self._subject, follow=follow)


class RecordFollower(_Follower[Recorded | ForeignRecord]):
    """Follows all records of a log, including foreign ones; see `_Follower`."""

    async def _newest(self) -> int:
        return await self._log.end()

    def _records(self, *, follow: bool) -> AsyncIterator[Recorded | ForeignRecord]:
        return self._log.read_records(self._start, follow=follow)
