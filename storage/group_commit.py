"""`GroupCommit`: store the appends of many tasks with one fsync.

One atomic batch is in flight at a time; meanwhile appends are collected for the next. If many bytes have collected, a
second batch is sent while the server stores the first. The appends of one call stay together and get the same result as
alone: a call that writes or has a fence on a subject of a batch in flight waits for its end, and a batch that a fence
refuses is repeated without the calls with that fence.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from schemas.errors import Conflict, EventTooLarge, LogUnavailable, SchemaError, SlimeEventsError
from schemas.subjects import any_verb, matches
from storage.cancellation import end_all, fail
from storage.log import MAX_BATCH, Append, EventLog, check_batch, check_size

BATCH_BYTES = 4 * 1024 * 1024
"""Most bytes in one batch: larger batches are not faster."""
MUCH_BYTES = 1024 * 1024
"""Fewest waiting bytes for a second batch: two small batches take longer than one."""


@dataclass(slots=True, eq=False)
class _Call:
    appends: list[Append]
    size: int
    result: asyncio.Future[list[int]]

    def fail(self, error: BaseException) -> None:
        fail(self.result, error)

    def finish(self, positions: list[int]) -> None:
        if not self.result.done():
            self.result.set_result(positions)


class GroupCommit:
    """Use `async with GroupCommit(log) as commit`, and `await commit.append([...])` from any number of tasks."""

    def __init__(self, log: EventLog, *, at_most: int = MAX_BATCH, max_bytes: int = BATCH_BYTES) -> None:
        self._log, self._at_most, self._max_bytes = log, at_most, max_bytes
        self._waiting: deque[_Call] = deque()
        self._waiting_bytes = 0
        self._under_way: dict[asyncio.Task[None], _Written] = {}
        self._news = asyncio.Event()
        self._closed = False
        self._writer: asyncio.Task[None] | None = None

    async def __aenter__(self) -> GroupCommit:
        self._writer = asyncio.create_task(self._write(), name="group-commit")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def append(self, appends: Sequence[Append]) -> list[int]:
        """Append as `EventLog.append` does, with the same result and promises."""
        return await self.submit(appends)

    def submit(self, appends: Sequence[Append]) -> asyncio.Future[list[int]]:
        """Append without a task, which costs ten futures. Raises UnwritableEvent, EventTooLarge, LogUnavailable."""
        if self._closed or self._writer is None or self._writer.done():
            raise LogUnavailable(f"the group commit of run {self._log.run!r} is not open")
        size = 0
        for append in appends:
            bytes_ = len(append.encoded())
            check_size(append, bytes_)
            size += bytes_
        check_batch(len(appends), size)
        call = _Call(list(appends), size, asyncio.get_running_loop().create_future())
        if appends:
            self._waiting.append(call)
            self._waiting_bytes += size
            self._news.set()
        else:
            call.finish([])
        return call.result

    async def close(self) -> None:
        """Store everything submitted, then end."""
        self._closed = True
        self._news.set()
        if self._writer is not None:
            await self._writer

    async def _write(self) -> None:
        try:
            while True:
                batch, written = self._next_batch() if self._may_begin() else ([], _Written())
                if batch:
                    task = asyncio.create_task(self._store_or_fail(batch), name="group-commit-batch")
                    self._under_way[task] = written
                    task.add_done_callback(lambda _: self._news.set())
                    continue
                if self._closed and not (self._waiting or self._under_way):  # `_next_batch` drops cancelled calls
                    return
                self._news.clear()
                await self._news.wait()
                if not self._under_way:
                    await asyncio.sleep(0)  # let other tasks of this event loop cycle submit
                for task in [task for task in self._under_way if task.done()]:
                    del self._under_way[task]
                    task.result()
        finally:
            await end_all(*self._under_way)
            for call in self._waiting:
                call.fail(LogUnavailable("the group commit ended before this was stored; it may be retried"))

    def _may_begin(self) -> bool:
        second = len(self._under_way) == 1 and self._waiting_bytes >= min(MUCH_BYTES, self._max_bytes)
        return bool(self._waiting) and (not self._under_way or second)

    def _next_batch(self) -> tuple[list[_Call], _Written]:
        """Return the next batch and the subjects it writes.

        A call joins if it fits, moves no fence of another call, and need not wait for a batch in flight.
        """
        batch: list[_Call] = []
        later: deque[_Call] = deque()
        written = _Written()
        count = size = 0
        while self._waiting:
            call = self._waiting.popleft()
            if call.result.done():
                continue
            fits = count + len(call.appends) <= self._at_most and size + call.size <= self._max_bytes
            if batch and not fits:
                later.append(call)
                break
            if written.moves_fence_of(call) or any(other.is_before(call) for other in self._under_way.values()):
                later.append(call)
                continue
            batch.append(call)
            written.add(call)
            count, size = count + len(call.appends), size + call.size
        later.extend(self._waiting)
        self._waiting, self._waiting_bytes = later, sum(call.size for call in later)
        return batch, written

    async def _store_or_fail(self, calls: list[_Call]) -> None:
        """Store calls; if the writer is stopped, fail them."""
        try:
            await self._store(calls)
        except BaseException as error:  # a cancellation too: the callers wait for a result
            for call in calls:
                call.fail(LogUnavailable(f"the group commit was stopped ({error!r}); this may be retried"))
            raise

    async def _store(self, calls: list[_Call]) -> None:
        while calls:
            try:
                positions = await self._log.append([append for call in calls for append in call.appends])
            except (Conflict, EventTooLarge, SchemaError) as error:
                calls = await self._without_culprits(calls, error)
                continue
            except SlimeEventsError as error:
                for call in calls:
                    call.fail(error)
                return
            start = 0
            for call in calls:
                call.finish(positions[start : start + len(call.appends)])
                start += len(call.appends)
            return

    async def _without_culprits(self, calls: list[_Call], error: SlimeEventsError) -> list[_Call]:
        """Store the calls with the refused fence one by one, and return the others."""
        if len(calls) == 1:
            calls[0].fail(error)
            return []
        culprits = [call for call in calls if isinstance(error, Conflict) and _brought(call, error)]
        if not culprits:
            culprits = calls
        for call in culprits:
            await self._store([call])
        return [call for call in calls if call not in culprits]


def _brought(call: _Call, conflict: Conflict) -> bool:
    fences = (append.fence for append in call.appends if append.fence is not None)
    return any(fence.subject == conflict.subject and fence.position == conflict.expected for fence in fences)


class _Written:
    """Subjects that a batch writes."""

    def __init__(self) -> None:
        self._subjects: set[str] = set()
        self._about: set[str] = set()

    def add(self, call: _Call) -> None:
        subjects = [append.envelope.subject for append in call.appends]
        self._subjects.update(subjects)
        self._about.update(map(any_verb, subjects))

    def moves_fence_of(self, call: _Call) -> bool:
        """Return whether the batch writes a subject that one of the call's fences covers."""
        return any(self._touches(append.fence.subject) for append in call.appends if append.fence is not None)

    def is_before(self, call: _Call) -> bool:
        """Return whether the call must wait for the batch: both write a subject, or a fence of the call covers one."""
        return self.moves_fence_of(call) or any(append.envelope.subject in self._subjects for append in call.appends)

    def _touches(self, pattern: str) -> bool:
        if "*" not in pattern and ">" not in pattern:
            return pattern in self._subjects
        if pattern.count("*") == 1 and pattern == any_verb(pattern):
            return pattern in self._about
        return any(matches(pattern, subject) for subject in self._subjects)
