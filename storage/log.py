"""`EventLog`: the single source of truth of a run, an append-only log of events. `MemoryLog` is its reference.

In order of use: `Append` (event and fence), `EventLog.append` (atomic), `read` (in order), `consume` (competing).

Every back-end keeps these promises, and one contract suite tests them:
- Positions are 1, 2, 3, ... without gaps, assigned by the log. All appends of one call are stored together or not at
  all, on consecutive positions, and are durable before the call returns.
- A fence names a subject filter and the position that the writer expects to be the last there (0: none). If the log has
  a later event there, the whole call is refused with `Conflict` and nothing is stored.
- An event whose id is already stored under its subject is the same event: it is not stored again, its fence is ignored,
  and its existing position is returned. So any append can be retried.
- All fences of one call are judged by the log before the call. A call holds at most MAX_BATCH events and
  MAX_BATCH_BYTES. A larger call is `EventTooLarge`, because splitting it would not be atomic (see `append_all`).
- A reader gets every event from its position on, in order, once.
- Old events can be removed from a log once they are in its archive, if it was created for that. All promises hold for
  removed events too, except that no new queue can begin before them.
- Anyone with permission to publish to a log's stream can add foreign records (schemas/foreign.py). They keep their
  positions and bytes, `read_records` returns them and `end` counts them. All other calls ignore them: no reader, taker
  or look-up gets a foreign record, and none affects a fence or an id.
- A consumer name identifies one queue over a filter. Each event is delivered to one of its takers, and again after
  `lease_s` without `working` or `done`, until it is done (and perhaps once more after a crash of the log itself).
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Annotated, Protocol, TypeVar, runtime_checkable

import msgspec

from schemas.codec import encode
from schemas.doc import doc
from schemas.envelope import Envelope
from schemas.errors import Conflict, EventTooLarge, SchemaError
from schemas.foreign import Reason, judge
from schemas.subjects import matcher

T = TypeVar("T")

MAX_EVENT_BYTES = 4 * 1024 * 1024
"""Most bytes of an encoded event; a server may have a lower limit. Larger payloads belong into the blob store."""
MAX_BATCH = 1000
"""Most events in one atomic call."""
MAX_BATCH_BYTES = 32 * 1024 * 1024
"""Most encoded bytes in one atomic call."""
HEADER_BYTES = 4096
"""Bytes of a message that are reserved for its headers."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Condition of an append."""

    subject: Annotated[str, doc("Subject filter.")]
    position: Annotated[int, doc("Expected last position under the filter; 0: none.")]


@dataclass(frozen=True, slots=True)
class Append:
    """One event to store."""

    envelope: Envelope
    fence: Annotated[Fence | None, doc("Condition; None: only that its id is not stored yet.")] = None
    _encoded: list[bytes] = field(default_factory=list, init=False, repr=False, compare=False)
    _repeats: list[bool] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def is_repeated(self) -> bool:
        """Whether the log found this event stored already, with other bytes: by another writer, or at another time."""
        return bool(self._repeats)

    def mark_repeated(self) -> None:
        """Set `is_repeated`. A log does so within the `append` that finds it."""
        self._repeats.append(True)

    def encoded(self) -> bytes:
        """Return the encoded record; encodes it at the first call only. Raises UnwritableEvent."""
        if not self._encoded:
            self._encoded.append(encode(self.envelope))
        return self._encoded[0]


class Recorded(msgspec.Struct, frozen=True, gc=False):
    """One stored event."""

    position: Annotated[int, doc("Log position, from 1.")]
    subject: str
    envelope: Envelope
    data: Annotated[bytes, doc("Exact stored bytes.")]


class ForeignRecord(msgspec.Struct, frozen=True, gc=False):
    """One stored record that is not an event of the run."""

    position: Annotated[int, doc("Log position, from 1.")]
    subject: Annotated[str, doc("Its subject, with bytes that are not UTF-8 as `\\xff`.")]
    reason: Annotated[Reason, doc("Why it is foreign.")]
    data: Annotated[bytes, doc("Exact stored bytes.")]


def record_of(run: str, position: int, subject: str, message_id: str | None, data: bytes) -> Recorded | ForeignRecord:
    """Judge a record (see `judge`). A SchemaError names the position and the subject."""
    try:
        judged = judge(run, subject, message_id, data)
    except SchemaError as error:
        raise type(error)(f"position {position} ({subject}): {error}") from error
    if isinstance(judged, Envelope):
        return Recorded(position, subject, judged, data)
    return ForeignRecord(position, subject, judged, data)


Subjects = str | tuple[str, ...] | None
"""Events that a reader selects: all (None), one filter, or several filters that match no subject twice."""


def is_wanted(subject: str, subjects: Subjects) -> bool:
    """Return whether a reader of `subjects` selects the events of this subject."""
    return subjects is None or selector_of(subjects)(subject)


def selector_of(subjects: Subjects) -> Callable[[str], bool]:
    """Return `is_wanted` for one reader as a predicate."""
    if subjects is None:
        return lambda _: True
    return matcher((subjects,) if isinstance(subjects, str) else subjects)


def once(envelope: Envelope) -> Append:
    """Return an append that succeeds only if its subject has no event: the first writer wins."""
    return Append(envelope, Fence(envelope.subject, 0))


class Delivery(Protocol):
    """One event delivered to one taker of a queue."""

    @property
    def recorded(self) -> Recorded:
        """The event to work on."""

    @property
    def attempt(self) -> int:
        """Number of the delivery, from 1."""

    async def working(self) -> None:
        """Renew the lease, well within `lease_s`. After its end this does nothing: another taker may have the event."""

    async def done(self) -> None:
        """Finish the event: it is not delivered again."""

    async def release(self) -> None:
        """Return the event to the queue at once. After the end of the lease this does nothing."""


class Consumer(Protocol):
    """A taker of a named queue."""

    async def take(self, limit: int, wait_s: float) -> list[Delivery]:
        """Return up to `limit` deliveries, or an empty list after `wait_s` seconds without any."""

    async def close(self) -> None:
        """Stop taking. Events that were taken and not done are delivered to others after their leases."""


class Readable(Protocol):
    """Read-only part of a log: of a live run, a finished run, or an archive."""

    @property
    def run(self) -> str:
        """Run whose log this is."""

    def read(self, start: int = 1, subject: Subjects = None, *, follow: bool = False) -> AsyncIterator[Recorded]:
        """Yield the selected events from position `start`, to the current end, or without end if `follow` is set."""

    def read_records(self, start: int = 1, *, follow: bool = False) -> AsyncIterator[Recorded | ForeignRecord]:
        """Yield all records from position `start`, including foreign ones."""

    async def last(self, subject: str) -> Recorded | None:
        """Return the last event that matches the filter, or None."""

    async def last_of_each(self, subjects: Sequence[str]) -> dict[str, Recorded]:
        """Return the last event of each subject that has any. The subjects have no wildcards."""

    async def subjects(self, pattern: str, start: int = 1) -> list[str]:
        """Return the subjects of all events that match a filter, each once.

        Subjects that occur only before `start` may be missing, and subjects of foreign records may be included.
        """

    async def position(self) -> int:
        """Return the position of the last event, or 0 if there is none."""

    async def end(self) -> int:
        """Return the last position, of an event or a foreign record; 0 for an empty log."""


class EventLog(Readable, Protocol):
    """Log of a live run. The module's docstring has the promises of each call."""

    async def append(self, appends: Sequence[Append]) -> list[int]:
        """Store all or nothing, and return the positions in order. Raises Conflict, LogUnavailable, EventTooLarge."""

    async def consume(self, name: str, subject: str, *, lease_s: float = 30.0, start: int = 1) -> Consumer:
        """Return a taker of the queue `name`. `start`, the queue's first position, is the same for all its takers."""

    async def done_up_to(self, name: str) -> int:
        """Return the position up to which everything in the queue `name` is done; 0 if the queue does not exist."""

    async def notify(self, listener: str, events: Sequence[Recorded], *, early: bool = False) -> None:
        """Send stored events to the current listeners of this name, so that they need not poll.

        Notifications are lost if there is no listener or the log is away: only reading is reliable.

        early: send events before they are stored, to early listeners. They have position 0, and may never be stored.
        Raises AccessDenied, at the latest at the second call, if the credentials lack the permission.
        """

    def listen(
        self, name: str, on_event: Callable[[Recorded], None], *, early: bool = False
    ) -> AbstractAsyncContextManager[None]:
        """Within the context, call `on_event` with each event sent to this name; those of one sender in order.

        early: receive early events, and no others. Raises AccessDenied if the credentials lack the permission.
        """

    async def close(self) -> None:
        """Close connections. Stored events stay."""


@runtime_checkable
class CountsRefusals(Protocol):
    """A log on a server that limits the open atomic batches."""

    def refused_batches(self) -> int:
        """Return how many batches this process repeated because too many were open, or the server was away."""


class Restorable(Readable, Protocol):
    """A log that can be restored from a copy: a back-end, not a wrapper."""

    async def restore(self, records: Sequence[Recorded | ForeignRecord]) -> None:
        """Store consecutive records unchanged (subject, id, bytes) at their positions, at most one atomic call.

        All are stored or none, except for a foreign record that is larger than any event. Records that are stored
        already are skipped. Raises Conflict if the log has other records there or does not end just before them,
        LogUnavailable.
        """


def fence_lost(event: str, fence: Fence, actual: int) -> Conflict:
    """Return the error of a refused `append`. event: its type and subject."""
    return Conflict(
        f"{event} expected position {fence.position} under {fence.subject}, found {actual}: another writer was first",
        subject=fence.subject,
        expected=fence.position,
        actual=actual,
    )


def not_the_end(run: str, record: Recorded | ForeignRecord, end: int) -> Conflict:
    """Return the error of a refused `restore`."""
    return Conflict(
        f"the log of run {run} ends at position {end} or has another record at {record.position}, so the record "
        f"of position {record.position} cannot be restored. Restore into an empty log",
        subject=record.subject,
        expected=record.position - 1,
        actual=end,
    )


def check_size(append: Append, size: int, limit: int = MAX_EVENT_BYTES) -> None:
    """Raise EventTooLarge if the encoded event has more than `limit` bytes."""
    if size > limit:
        raise EventTooLarge(
            f"{append.envelope.type} about {append.envelope.event.entity()} has {size} bytes, the limit is {limit}: "
            "put its arrays into the blob store"
        )


def check_batch(count: int, size: int) -> None:
    """Raise EventTooLarge if one atomic call exceeds the limits."""
    if count > MAX_BATCH or size > MAX_BATCH_BYTES:
        raise EventTooLarge(
            f"{count} events of {size} bytes in one atomic append; the limits are {MAX_BATCH} events and "
            f"{MAX_BATCH_BYTES} bytes: use append_all if the events need not be stored together"
        )


async def append_all(log: EventLog, appends: Sequence[Append], *, at_most: int = MAX_BATCH) -> list[int]:
    """Store many events in order, `at_most` in each atomic call. The whole is not atomic.

    After an error the earlier calls stay stored, and the whole may be retried. No fence may cover a subject that an
    earlier call writes.
    """
    positions: list[int] = []
    for batch in in_batches(appends, lambda append: len(append.encoded()), at_most):
        positions += await log.append(batch)
    return positions


def in_batches(events: Iterable[T], size_of: Callable[[T], int], at_most: int = MAX_BATCH) -> Iterator[list[T]]:
    """Split events into batches for atomic calls. size_of: returns the encoded bytes of an event."""
    batch: list[T] = []
    size = 0
    for event in events:
        bytes_ = size_of(event)
        if batch and (len(batch) >= at_most or size + bytes_ > MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(event)
        size += bytes_
    if batch:
        yield batch
