"""`EventLog`: the only truth of a run, an append-only log of events. The in-memory log defines what it means.

The ladder: `Append` (event and fence) -> `EventLog.append` (atomic) -> `read` (in order) -> `consume` (competing).

What every back-end keeps, proved by one contract suite:
- Positions are 1, 2, 3, ... without holes, given by the log. All appends of one call are stored together or not at all,
  on consecutive positions, and are durable before the call returns.
- A fence names a subject filter and the position that the writer believes to be the last there (0: nothing). Where the
  log has moved on, the whole call is refused with `Conflict` and nothing is stored.
- An event whose id is already stored under its subject is the same event: it is not stored again, its fence is not
  looked at, and its old position is returned. So any append may be retried after any doubt.
- Fences of one call are all judged by the log as it is before the call. A call holds MAX_BATCH events and
  MAX_BATCH_BYTES at most; more is `EventTooLarge`, as splitting would break its promise (see `append_all`).
- A reader sees every event from its position on, in order, once.
- Events may leave a log for its archive, if it was made for that. All of this holds for them too, except that no new
  queue begins before what has left.
- Whoever may publish to a log's stream can leave records in it that are no events (schemas/foreign.py). They keep their
  positions and bytes, `read_records` shows them and `end` counts them. Everything else here speaks of events alone: no
  reader, taker or look-up is given a foreign record, no fence is lost to one, and no id is taken by one.
- A consumer name stands for one queue over a filter: each event goes to one of its takers, again after `lease_s`
  without `working` or `done`, until it is done (and perhaps once more after a crash of the log itself).
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, runtime_checkable

import msgspec

from schemas.codec import encode
from schemas.envelope import Envelope
from schemas.errors import Conflict, EventTooLarge, SchemaError
from schemas.foreign import Reason, judge
from schemas.subjects import matcher

T = TypeVar("T")

MAX_EVENT_BYTES = 4 * 1024 * 1024
"""One encoded event. A server that takes less sets the limit; larger payloads belong into the blob store."""
MAX_BATCH = 1000
"""Events in one atomic call."""
MAX_BATCH_BYTES = 32 * 1024 * 1024
"""Encoded bytes in one atomic call."""
HEADER_BYTES = 4096
"""Room that a message keeps for its headers."""


@dataclass(frozen=True, slots=True)
class Fence:
    """The last position that the writer knows of under `subject` (a filter; 0: nothing there yet)."""

    subject: str
    position: int


@dataclass(frozen=True, slots=True)
class Append:
    """One event to store, on the condition of its fence (None: no condition but its own id)."""

    envelope: Envelope
    fence: Fence | None = None
    _encoded: list[bytes] = field(default_factory=list, init=False, repr=False, compare=False)

    def encoded(self) -> bytes:
        """The record, encoded once however many layers ask for it. Raises UnwritableEvent."""
        if not self._encoded:
            self._encoded.append(encode(self.envelope))
        return self._encoded[0]


class Recorded(msgspec.Struct, frozen=True, gc=False):
    """One stored event. `data` are the exact bytes."""

    position: int
    subject: str
    envelope: Envelope
    data: bytes


class ForeignRecord(msgspec.Struct, frozen=True, gc=False):
    """One stored record that is no event of the run. `data` are the exact bytes; bytes of its subject that are no UTF-8
    are written as `\\xff`.
    """

    position: int
    subject: str
    reason: Reason
    data: bytes


def record_of(run: str, position: int, subject: str, message_id: str | None, data: bytes) -> Recorded | ForeignRecord:
    """What lies at a position; see `judge`. A SchemaError names the position and the subject."""
    try:
        judged = judge(run, subject, message_id, data)
    except SchemaError as error:
        raise type(error)(f"position {position} ({subject}): {error}") from error
    if isinstance(judged, Envelope):
        return Recorded(position, subject, judged, data)
    return ForeignRecord(position, subject, judged, data)


Subjects = str | tuple[str, ...] | None
"""The events that a reader wants: all (None), those of one filter, or of several, no two of which match the same
subject."""


def is_wanted(subject: str, wanted: Subjects) -> bool:
    """Whether a reader wants the events of this subject."""
    return wanted is None or wish_of(wanted)(subject)


def wish_of(wanted: Subjects) -> Callable[[str], bool]:
    """`is_wanted` of a reader, looked up once for all that it reads."""
    if wanted is None:
        return lambda _: True
    return matcher((wanted,) if isinstance(wanted, str) else wanted)


def once(envelope: Envelope) -> Append:
    """An event that may be stored only once under its subject: the first writer wins."""
    return Append(envelope, Fence(envelope.subject, 0))


class Delivery(Protocol):
    """One event handed to one taker of a consumer."""

    @property
    def recorded(self) -> Recorded:
        """What is to be worked on."""

    @property
    def attempt(self) -> int:
        """1 at first, more after redeliveries."""

    async def working(self) -> None:
        """Renew the lease, well within `lease_s`. After its end this does nothing: another taker may have the event."""

    async def done(self) -> None:
        """It will not be delivered again."""

    async def release(self) -> None:
        """Give it back at once. After the end of the lease this does nothing."""


class Consumer(Protocol):
    """A taker of a named queue."""

    async def take(self, limit: int, wait_s: float) -> list[Delivery]:
        """Up to `limit` deliveries; an empty list after `wait_s` without any."""

    async def close(self) -> None:
        """Stop taking. What was taken and not done comes back to others when its lease is over."""


class Readable(Protocol):
    """What looking at the past needs of a log: a live one, a finished run's, or an archive."""

    @property
    def run(self) -> str:
        """The run whose log this is."""

    def read(self, start: int = 1, subject: Subjects = None, *, follow: bool = False) -> AsyncIterator[Recorded]:
        """Events from position `start` that are wanted. Ends at the last one there is, or follows for ever."""

    def read_records(self, start: int = 1, *, follow: bool = False) -> AsyncIterator[Recorded | ForeignRecord]:
        """Everything from position `start`, foreign records too: for who keeps, counts or names them."""

    async def last(self, subject: str) -> Recorded | None:
        """The last event that matches the filter."""

    async def last_of_each(self, subjects: Sequence[str]) -> dict[str, Recorded]:
        """The last event of each of these subjects that has any; the subjects are whole, without wildcards."""

    async def subjects(self, pattern: str, start: int = 1) -> list[str]:
        """The subjects of all events that match a filter, each once. Those from before `start` may be left out, and
        some may be named that hold foreign records alone.
        """

    async def position(self) -> int:
        """The position of the last event, 0 for a log without any."""

    async def end(self) -> int:
        """The last position, be it of an event or of a foreign record; 0 for an empty log."""


class EventLog(Readable, Protocol):
    """The module's docstring has the promises of each call."""

    async def append(self, appends: Sequence[Append]) -> list[int]:
        """Store all or nothing; their positions in the given order. Raises Conflict, LogUnavailable, EventTooLarge."""

    async def consume(self, name: str, subject: str, *, lease_s: float = 30.0, start: int = 1) -> Consumer:
        """A taker of the queue `name`, which begins at position `start`: the same for all its takers."""

    async def done_up_to(self, name: str) -> int:
        """The position up to which everything in the queue `name` is done; 0 where there is no such queue."""

    async def notify(self, listener: str, events: Sequence[Recorded], *, early: bool = False) -> None:
        """Hand events that are stored to whoever hears under this name now, so that it need not look for them. Lost
        where nobody does, or while the log is away: only what is read is sure to come.

        early: events that are about to be stored, to whoever hears them early: they are at no position (0), and may
        never come. Raises AccessDenied, at the latest the second time, where these credentials may not.
        """

    def listen(
        self, name: str, on_event: Callable[[Recorded], None], *, early: bool = False
    ) -> AbstractAsyncContextManager[None]:
        """While inside, `on_event` is called with each event that is told to this name; of one teller, in order. Raises
        AccessDenied where these credentials may not. early: with what is told early, and with nothing else.
        """

    async def close(self) -> None:
        """Let go of connections; what was stored stays."""


@runtime_checkable
class CountsRefusals(Protocol):
    """A log on a server that bounds how many atomic batches are open at a time."""

    def refused_batches(self) -> int:
        """Batches that this process had to send again so far: too many were open, or the server was just away."""


class Restorable(Readable, Protocol):
    """A log that can be restored from a copy. Back-ends can; wrappers cannot."""

    async def restore(self, records: Sequence[Recorded | ForeignRecord]) -> None:
        """Store consecutive records as they are (subject, id, bytes), at the positions that they have: all or nothing,
        but for a foreign record that is larger than any event.

        At most what one atomic call holds. What is there already is not stored again. Raises Conflict where the log has
        something else there or does not end just before them, LogUnavailable.
        """


def fence_lost(event: str, fence: Fence, actual: int) -> Conflict:
    """The refusal of `append`. event: its type and subject."""
    return Conflict(
        f"{event} expected position {fence.position} under {fence.subject}, found {actual}: another writer was first",
        subject=fence.subject,
        expected=fence.position,
        actual=actual,
    )


def not_the_end(run: str, record: Recorded | ForeignRecord, end: int) -> Conflict:
    """The refusal of `restore`."""
    return Conflict(
        f"the log of run {run} ends at position {end} or has another record at {record.position}: what belongs at "
        f"{record.position} cannot be restored there. Restore into an empty place",
        subject=record.subject,
        expected=record.position - 1,
        actual=end,
    )


def check_size(append: Append, size: int, limit: int = MAX_EVENT_BYTES) -> None:
    """EventTooLarge where the encoded event has more than `limit` bytes."""
    if size > limit:
        raise EventTooLarge(
            f"{append.envelope.type} about {append.envelope.event.entity()} has {size} bytes, {limit} is the most: "
            "put its arrays into the blob store"
        )


def check_batch(count: int, size: int) -> None:
    """EventTooLarge where one atomic call is above the limits."""
    if count > MAX_BATCH or size > MAX_BATCH_BYTES:
        raise EventTooLarge(
            f"{count} events of {size} bytes in one atomic append; {MAX_BATCH} events and {MAX_BATCH_BYTES} bytes are "
            "the most: use append_all where they need not be stored together"
        )


async def append_all(log: EventLog, appends: Sequence[Append], *, at_most: int = MAX_BATCH) -> list[int]:
    """Store many events in order, `at_most` in each atomic call: for events that need not be stored together.

    After an error the first calls stand, and the whole may be retried. No fence may be over what an earlier call moves.
    """
    positions: list[int] = []
    for batch in in_batches(appends, lambda append: len(append.encoded()), at_most):
        positions += await log.append(batch)
    return positions


def in_batches(events: Iterable[T], size_of: Callable[[T], int], at_most: int = MAX_BATCH) -> Iterator[list[T]]:
    """The same in pieces that one atomic call can hold. size_of: bytes of one, encoded."""
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
