"""`MemoryLog`: the reference implementation of `EventLog`. The JetStream log behaves the same."""

from __future__ import annotations

import asyncio
import contextlib
import time
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from schemas.errors import LogUnavailable
from schemas.subjects import any_verb, every_event, matches
from storage.log import (
    Append,
    Delivery,
    ForeignRecord,
    Recorded,
    Subjects,
    check_batch,
    check_size,
    fence_lost,
    is_wanted,
    not_the_end,
    record_of,
    selector_of,
)


@dataclass(slots=True)
class _Lease:
    taken: int = 0
    until: float = 0.0
    done: bool = False


@dataclass(slots=True)
class _Queue:
    subject: str
    seen: int = 0
    leases: dict[int, _Lease] = field(default_factory=dict)


class MemoryDelivery:
    """One event delivered to one taker."""

    def __init__(self, log: MemoryLog, queue: _Queue, recorded: Recorded, lease_s: float) -> None:
        self.recorded = recorded
        self._log, self._queue, self._lease_s = log, queue, lease_s
        self._lease = queue.leases[recorded.position]
        self.attempt = self._lease.taken

    def _still_mine(self) -> bool:
        lease = self._lease
        return lease.taken == self.attempt and not lease.done and time.monotonic() < lease.until

    async def working(self) -> None:
        if self._still_mine():
            self._lease.until = time.monotonic() + self._lease_s

    async def done(self) -> None:
        self._lease.done = True
        self._queue.leases.pop(self.recorded.position, None)

    async def release(self) -> None:
        if self._still_mine():
            self._lease.until = 0.0
            self._log.wake()


class MemoryConsumer:
    """A taker of a named queue."""

    def __init__(self, log: MemoryLog, queue: _Queue, lease_s: float) -> None:
        self._log, self._queue, self._lease_s, self._closed = log, queue, lease_s, False

    async def take(self, limit: int, wait_s: float) -> list[Delivery]:
        end = time.monotonic() + wait_s
        while not self._closed:
            taken = self._take_now(limit)
            left = end - time.monotonic()
            if taken or left <= 0:
                return taken
            await self._log.changed(min(left, self._next_expiry()))
        return []

    def _next_expiry(self) -> float:
        now = time.monotonic()
        return max(0.0, min((lease.until - now for lease in self._queue.leases.values()), default=3600.0))

    def _take_now(self, limit: int) -> list[Delivery]:
        queue, now = self._queue, time.monotonic()
        for record in self._log.events_after(queue.seen):
            if is_wanted(record.subject, queue.subject):
                queue.leases[record.position] = _Lease()
        queue.seen = max(queue.seen, self._log.count)
        taken: list[Delivery] = []
        for position, lease in list(queue.leases.items()):
            if len(taken) >= limit:
                break
            if lease.until <= now:
                lease.taken += 1
                lease.until = now + self._lease_s
                taken.append(MemoryDelivery(self._log, queue, self._log.event_at(position), self._lease_s))
        return taken

    async def close(self) -> None:
        self._closed = True
        self._log.wake()


class MemoryLog:
    """An event log in one process; events are encoded and decoded as on the wire.

    `records` has the events and `foreign` the foreign records, each in order.
    """

    def __init__(self, run: str) -> None:
        self.run = run
        self.records: list[Recorded] = []
        self.foreign: list[ForeignRecord] = []
        self._ids: dict[tuple[str, str], int] = {}
        self._last: dict[str, int] = {}
        self._last_about: dict[str, int] = {}
        self._queues: dict[str, _Queue] = {}
        self._waiting: set[asyncio.Future[None]] = set()
        self._listeners: dict[tuple[str, bool], list[Callable[[Recorded], None]]] = {}
        self._closed = False

    async def append(self, appends: Sequence[Append]) -> list[int]:
        self._check_open()
        fresh: dict[tuple[str, str], tuple[Append, bytes]] = {}
        keys = [(append.envelope.subject, append.envelope.id) for append in appends]
        for append, key in zip(appends, keys, strict=True):
            data = append.encoded()
            check_size(append, len(data))
            if key not in self._ids:
                fresh.setdefault(key, (append, data))
        check_batch(len(fresh), sum(len(data) for _, data in fresh.values()))
        for append, _ in fresh.values():
            self._check_fence(append)
        for key, (_, data) in fresh.items():
            self._ids[key] = self._store(*key, data)
        for append, key in zip(appends, keys, strict=True):
            if self.record_at(self._ids[key]).data != append.encoded():
                append.mark_repeated()
        if fresh:
            self.wake()
        return [self._ids[key] for key in keys]

    def publish(self, subject: str, data: bytes, message_id: str = "") -> int:
        """Store an unchecked record and return its position, as a client with the run's credentials can."""
        position = self._store(subject, message_id, data)
        self.wake()
        return position

    async def restore(self, records: Sequence[Recorded | ForeignRecord]) -> None:
        self._check_open()
        for record in records:
            if record.position <= self.count:
                stored = self.record_at(record.position)
                if (stored.subject, stored.data) == (record.subject, record.data):
                    continue
            if record.position != self.count + 1:
                raise not_the_end(self.run, record, self.count)
            message_id = record.envelope.id if isinstance(record, Recorded) else ""
            position = self._store(record.subject, message_id, record.data)
            if message_id:
                self._ids[(record.subject, message_id)] = position
        self.wake()

    def _store(self, subject: str, message_id: str, data: bytes) -> int:
        position = self.count + 1
        record = record_of(self.run, position, subject, message_id, data)
        if isinstance(record, Recorded):
            self.records.append(record)
            self._last[subject] = position
            self._last_about[any_verb(subject)] = position
        else:
            self.foreign.append(record)
        return position

    @property
    def count(self) -> int:
        """Number of all records: the last position."""
        return len(self.records) + len(self.foreign)

    def record_at(self, position: int) -> Recorded | ForeignRecord:
        """Return the record at a position from 1 to `count`."""
        before = bisect_left(self.foreign, position, key=lambda record: record.position)
        if self.foreign[before : before + 1] and self.foreign[before].position == position:
            return self.foreign[before]
        return self.records[position - 1 - before]

    def events_after(self, position: int) -> list[Recorded]:
        """Return the events after a position."""
        return [record for record in self.records[self._events_up_to(position) :] if record.position > position]

    def _events_up_to(self, position: int) -> int:
        """Return the number of events up to a position."""
        foreign = bisect_right(self.foreign, position, key=lambda record: record.position)
        return max(0, min(position - foreign, len(self.records)))

    def event_at(self, position: int) -> Recorded:
        """Return the event at a position, which must have one."""
        return self.records[position - 1 - bisect_left(self.foreign, position, key=lambda record: record.position)]

    def _check_fence(self, append: Append) -> None:
        fence, envelope = append.fence, append.envelope
        if fence is not None and (actual := self._last_position(fence.subject)) != fence.position:
            raise fence_lost(f"{envelope.type} on {envelope.subject}", fence, actual)

    def _last_position(self, subject: str) -> int:
        if subject == every_event(self.run):
            return self.records[-1].position if self.records else 0
        if "*" not in subject and ">" not in subject:
            return self._last.get(subject, 0)
        if subject.count("*") == 1 and subject == any_verb(subject):
            return self._last_about.get(subject, 0)
        return max((p for s, p in self._last.items() if matches(subject, s)), default=0)

    async def read(self, start: int = 1, subject: Subjects = None, *, follow: bool = False) -> AsyncIterator[Recorded]:
        is_selected, end = selector_of(subject), self.count
        index = self._events_up_to(start - 1)
        while True:
            self._check_open()
            while index < len(self.records):
                record = self.records[index]
                if not follow and record.position > end:
                    return
                index += 1
                if record.position >= start and is_selected(record.subject):
                    yield record
            if not follow:
                return
            await self.changed(3600.0)

    async def read_records(
        self, start: int = 1, *, follow: bool = False
    ) -> AsyncGenerator[Recorded | ForeignRecord, None]:
        position = max(start, 1)
        end = self.count
        while True:
            self._check_open()
            while position <= (self.count if follow else end):
                position += 1
                yield self.record_at(position - 1)
            if not follow:
                return
            await self.changed(3600.0)

    async def last(self, subject: str) -> Recorded | None:
        self._check_open()
        position = self._last_position(subject)
        return self.event_at(position) if position else None

    async def last_of_each(self, subjects: Sequence[str]) -> dict[str, Recorded]:
        self._check_open()
        return {subject: self.event_at(self._last[subject]) for subject in subjects if subject in self._last}

    async def subjects(self, pattern: str, start: int = 1) -> list[str]:
        self._check_open()
        return [subject for subject in self._last if matches(pattern, subject)]

    async def position(self) -> int:
        self._check_open()
        return self._last_position(every_event(self.run))

    async def end(self) -> int:
        self._check_open()
        return self.count

    async def consume(self, name: str, subject: str, *, lease_s: float = 30.0, start: int = 1) -> MemoryConsumer:
        self._check_open()
        return MemoryConsumer(self, self._queues.setdefault(name, _Queue(subject, start - 1)), lease_s)

    async def done_up_to(self, name: str) -> int:
        queue = self._queues.get(name)
        if queue is None:
            return 0
        return min(queue.leases, default=queue.seen + 1) - 1

    async def notify(self, listener: str, events: Sequence[Recorded], *, early: bool = False) -> None:
        for recorded in events:
            for on_event in self._listeners.get((listener, early), ()):
                on_event(recorded)

    @contextlib.asynccontextmanager
    async def listen(
        self, name: str, on_event: Callable[[Recorded], None], *, early: bool = False
    ) -> AsyncIterator[None]:
        listeners = self._listeners.setdefault((name, early), [])
        listeners.append(on_event)
        try:
            yield
        finally:
            listeners.remove(on_event)

    async def close(self) -> None:
        """Refuse further calls and end all readers."""
        self._closed = True
        self.wake()

    def wake(self) -> None:
        """Wake every waiting reader and taker."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    async def changed(self, seconds: float) -> None:
        """Wait for a change, at most `seconds`. The caller must not await between its last check and this call."""
        self._check_open()
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            await asyncio.wait({waiting}, timeout=seconds)
        finally:
            self._waiting.discard(waiting)

    def _check_open(self) -> None:
        if self._closed:
            raise LogUnavailable(f"the in-memory log of run {self.run!r} is closed")
