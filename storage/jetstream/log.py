"""`JetStreamLog`: the event log of a run as one NATS JetStream stream.

    append    one atomic batch: fences by expected sequence, ids as message ids, one fsync (`sync_interval: always`)
    read      Direct Get to the end, then an ephemeral consumer to follow (storage/jetstream/read.py)
    consume   a durable pull consumer with explicit acks (storage/jetstream/consumer.py)

An acked event is on disk only if the server runs with `sync_interval: always`, as the embedded server does. In a stream
with three replicas it is then on at least two disks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from schemas import subjects
from schemas.doc import doc
from schemas.errors import ImpossibleCombination, LogDamaged, LogUnavailable, NoSpace
from schemas.foreign import is_message_id
from schemas.subjects import any_verb, check_token, every_event, is_token, matches
from storage.event_block import EventBlock
from storage.jetstream.address import NatsAddress
from storage.jetstream.announcements import announce
from storage.jetstream.answer import Answer
from storage.jetstream.append import Contradiction, Message, fences_of, headers_of, messages_of
from storage.jetstream.connection import Connection
from storage.jetstream.consumer import JetStreamConsumer, done_up_to
from storage.jetstream.ensure import ensure_stream
from storage.jetstream.long_stream import LongStream
from storage.jetstream.notification import notification_bytes, notified_event
from storage.jetstream.read import judged, last_event, read_blocks, read_events, read_records
from storage.jetstream.restore import Restoration
from storage.jetstream.retry import Away, OnWait, Retry, TooManyBatches, log_wait
from storage.jetstream.send import Refused, send
from storage.jetstream.stream import NotTheLast, Stored, Stream, widen_stream
from storage.log import HEADER_BYTES, MAX_EVENT_BYTES, Append, Fence, ForeignRecord, Recorded, Subjects, fence_lost

if TYPE_CHECKING:
    from storage.archive.reader import ArchiveReader

_log = logging.getLogger(__name__)

RETRY_S = 300.0
"""Seconds that a call waits for NATS to return: longer than a machine takes to restart."""

KNOWN_SUBJECTS = 65536
"""Subjects whose last position a writer caches, to save a look-up when it writes there again without a fence."""

REMOVE_S = 10.0
_SUBJECTS, _PAGE = 256, 256
"""Subjects and messages in one look-up request; the server answers with at most 1024."""


class Extent(NamedTuple):
    """Extent of a log on its server."""

    first: Annotated[int, doc("First position in the stream.")]
    last: Annotated[int, doc("Last position in the stream.")]
    bytes: Annotated[int, doc("Size of the stream, in bytes.")]
    past_bytes: Annotated[int, doc("Size of the stream that describes removed events, in bytes.")]


class JetStreamLog:
    """See the module, and `storage/log.py` for the promises of each call."""

    def __init__(self, run: str, connection: Connection, stream: Stream) -> None:
        self.run = run
        self.connection = connection
        self._stream = stream
        self._last: OrderedDict[str, int] = OrderedDict()
        self._refused_batches = 0

    @classmethod
    async def open(
        cls,
        server: NatsAddress | str,
        run: str,
        *,
        deadline_s: float = 30.0,
        create: bool = True,
        replicas: int = 1,
        archive_url: str | None = None,
        retry_s: float = RETRY_S,
        on_wait: OnWait = log_wait,
    ) -> JetStreamLog:
        """Connect, and create the stream if it does not exist.

        server: a URL, with commas between the nodes of a cluster, or an address with credentials. replicas: copies of a
        new stream, each on another node. archive_url: see `ensure_stream`. deadline_s: for opening. retry_s: for any
        later call while NATS is away, with one call of `on_wait`.

        Raises LogUnavailable, AccessDenied, MissingPart (server too old), RunNotFound (`create=False`), StorageError
        (not a run's log), ImpossibleCombination (replicas without a cluster).
        """
        check_token(run, "run name")
        connection = await Connection.open(server, deadline_s=deadline_s, retry_s=retry_s, on_wait=on_wait)
        options: dict[str, Any] = {"create": create, "replicas": replicas, "archive_url": archive_url}
        try:
            return cls(run, connection, await ensure_stream(connection, run, **options, deadline_s=deadline_s))
        except BaseException:  # a cancellation too must not leave the connection open
            await connection.close()
            raise

    async def widen(self) -> None:
        """Make a log of an earlier version accept the event types added since."""
        if not self.lets_go:  # the entrance of such a log accepts every type
            await widen_stream(self._stream, self.run)

    async def append(self, appends: Sequence[Append]) -> list[int]:
        limit = min(MAX_EVENT_BYTES, self.connection.max_payload - HEADER_BYTES)
        keys = [(append.envelope.subject, append.envelope.id) for append in appends]
        messages = messages_of(appends, limit)
        data = {message.key: message.data for message in messages}  # of the first, if an event is there twice
        earlier = await self._store(messages)
        for append, key in zip(appends, keys, strict=True):
            if key in earlier.repeated or append.encoded() != data[key]:
                append.mark_repeated()
        positions = [earlier.positions[key] for key in keys]
        await announce(self.connection, self.run, appends, positions)
        return positions

    async def restore(self, records: Sequence[Recorded | ForeignRecord]) -> None:
        await Restoration(self._stream).store(records)

    async def _store(self, pending: list[Message]) -> _Found:
        """Store the events that are not stored yet, atomically. Return all positions."""
        earlier = await self._stored_already(pending)
        positions = earlier.positions
        pending = [message for message in pending if message.key not in positions]
        passed: dict[Fence, int] = {}
        retry = self.connection.retry()
        while pending:
            try:
                first = await self._send(pending, passed)
            except (Away, NoSpace) as error:  # space may be freed
                if isinstance(error, TooManyBatches):
                    self._count_refused(error)
                await retry.pause(error)
                await self._stream.refresh(retry.left)
                continue
            except (Refused, Contradiction, NotTheLast) as refusal:
                pending = await self._after_refusal(refusal, pending, earlier, passed, retry)
                continue
            positions |= {message.key: position for position, message in enumerate(pending, first)}
            self._remember({message.subject: positions[message.key] for message in pending if message.fence is None})
            break
        return earlier

    def refused_batches(self) -> int:
        return self._refused_batches

    def _count_refused(self, error: TooManyBatches) -> None:
        """Log the 1st, 10th, 100th, ... refusal: each delays an append, and nothing else reports it."""
        self._refused_batches += 1
        if str(self._refused_batches).strip("0") == "1":
            _log.warning("NATS refused append %d, which is sent again: %s", self._refused_batches, error)

    async def _stored_already(self, messages: Sequence[Message]) -> _Found:
        """Look up the messages whose fence covers no subject in the call: the server would not detect a repetition.

        A fence on a subject that the call writes fails when the call is repeated. The server keeps message ids for a
        short time only, and after a restart none of events removed from its stream.
        """
        for message in messages:
            if message.fence is None and self._stream.has_left(self._last.get(message.subject, 0)):
                del self._last[message.subject]
        moved = {subject for m in messages for subject in (m.subject, any_verb(m.subject))}
        apart = [
            m for m in messages if m.fence and m.fence.subject not in moved and not matches(m.fence.subject, m.subject)
        ]
        return await _find(self._stream, apart) if apart else _Found({}, {}, set())

    async def _send(self, messages: Sequence[Message], passed: Mapping[Fence, int]) -> int:
        """Send messages and return the first position. Raises Refused, Contradiction, NotTheLast, Away."""
        whole, expected = fences_of(self.run, messages, self._last, passed)
        sent = [(self._stream.incoming(m.subject), m.data) for m in messages]  # entrance before the fences are judged
        headers = headers_of(messages, whole, await self._stream.to_expect(expected), secrets.token_hex(11))
        return await send(self.connection, sent, headers)

    async def _after_refusal(
        self,
        refusal: Exception,
        pending: list[Message],
        earlier: _Found,
        passed: dict[Fence, int],
        retry: Retry,
    ) -> list[Message]:
        """Return the messages that are still to be stored. Raises Conflict if another writer was first."""
        await self._stream.refresh()
        stored, last, repeated = await _find(self._stream, pending)
        earlier.positions.update(stored)
        earlier.repeated.update(repeated)
        left = [message for message in pending if message.key not in stored]
        has_news = False
        for fence, message in {message.fence: message for message in left if message.fence is not None}.items():
            end = await self._check_fence(fence, message)
            has_news |= passed.get(fence, fence.position) != end
            passed[fence] = end
        moved = {m.subject: last[m.subject] for m in left if m.fence is None}
        has_news |= any(self._last.get(subject, 0) != position for subject, position in moved.items())
        self._remember(moved)
        if len(left) == len(pending) and not has_news:
            if isinstance(refusal, Refused) and refusal.id_taken:
                suffix = secrets.token_hex(4)
                return [message.renamed(suffix) for message in left]
            await retry.pause("the server refused an append for a reason that no longer applies")
        return left

    async def _check_fence(self, fence: Fence, message: Message) -> int:
        """Return the last record's position under a fence. Raises Conflict if the last event is another one."""
        subject = ">" if fence.subject == every_event(self.run) else fence.subject
        event, end = await last_event(self._stream, subject)
        actual = event.position if event is not None else 0
        if actual != fence.position:
            raise fence_lost(f"{message.event_type} on {message.subject}", fence, actual)
        return end

    def _remember(self, positions: Mapping[str, int]) -> None:
        for subject, position in positions.items():
            self._last[subject] = position
            self._last.move_to_end(subject)
        while len(self._last) > KNOWN_SUBJECTS:
            self._last.popitem(last=False)

    def read(self, start: int = 1, subject: Subjects = None, *, follow: bool = False) -> AsyncIterator[Recorded]:
        """See `EventLog.read`. Raises SchemaError with the position of an unreadable event, LogDamaged if a position is
        missing, LogUnavailable.
        """
        return read_events(self._stream, max(start, 1), subject, follow=follow)

    def event_blocks(self, start: int, chain: bytes, every: int | None) -> AsyncGenerator[EventBlock, None]:
        return read_blocks(self._stream, max(start, 1), chain, every)

    def read_records(self, start: int = 1, *, follow: bool = False) -> AsyncIterator[Recorded | ForeignRecord]:
        return read_records(self._stream, max(start, 1), None, follow=follow)

    async def last(self, subject: str) -> Recorded | None:
        return (await last_event(self._stream, subject))[0]

    async def last_of_each(self, subjects: Sequence[str]) -> dict[str, Recorded]:
        last: dict[str, Recorded] = {}
        for stored in await self._stream.whole(await _last_of_each(self._stream, subjects)):
            record: Recorded | ForeignRecord | None = judged(self._stream.name, stored)
            if isinstance(record, ForeignRecord):
                record = await self.last(stored.subject)
            if isinstance(record, Recorded):
                last[stored.subject] = record
        return last

    async def subjects(self, pattern: str, start: int = 1) -> list[str]:
        named = await self._stream.subjects(pattern)
        return [subject for subject in named if all(map(is_token, subject.split(".")))]

    async def position(self) -> int:
        last = await self.last(">")
        return last.position if last is not None else 0

    async def end(self) -> int:
        return await self._stream.end()

    async def remove(self) -> None:
        """Delete the whole log on its server. Only its creator may call this, and only if nobody reads the log."""
        await self.connection.api(f"STREAM.DELETE.{self._stream.name}", deadline_s=REMOVE_S)
        if isinstance(self._stream, LongStream):
            await self.connection.api(f"STREAM.DELETE.{self._stream.past.name}", deadline_s=REMOVE_S)

    @property
    def lets_go(self) -> bool:
        """Whether `remove_archived` may be called: the stream was created for it."""
        return isinstance(self._stream, LongStream)

    async def remove_archived(self, archive: ArchiveReader, upto: int) -> None:
        if not isinstance(self._stream, LongStream):
            raise ImpossibleCombination(
                f"the log of run {self.run} was created to keep all events: none can be removed"
            )
        from storage.jetstream.removal import remove_archived  # needed by one process of a run

        await remove_archived(self._stream, archive, upto)

    async def extent(self) -> Extent:
        state, past = (await self._stream.info())["state"], 0
        if isinstance(self._stream, LongStream):
            past = int((await self._stream.past.info())["state"]["bytes"])
        return Extent(max(1, int(state["first_seq"])), int(state["last_seq"]), int(state["bytes"]), past)

    async def consume(self, name: str, subject: str, *, lease_s: float = 30.0, start: int = 1) -> JetStreamConsumer:
        if isinstance(self._stream, LongStream):
            await self._check_queue(self._stream, name, subject, start)
        return await JetStreamConsumer.open(self.connection, self._stream.name, name, subject, lease_s, start)

    async def _check_queue(self, stream: LongStream, name: str, subject: str, start: int) -> None:
        """Raises LogDamaged if an event that the queue has not done was removed from the stream."""
        left = await stream.left_from(subject, start)
        if left and await self.done_up_to(name) < left:
            raise LogDamaged(
                f"queue {name} of run {self.run} needs position {left}, which was removed from the log: only events "
                "that every queue has done may be removed"
            )

    async def done_up_to(self, name: str) -> int:
        return await done_up_to(self.connection, self._stream.name, name)

    async def notify(self, listener: str, events: Sequence[Recorded], *, early: bool = False) -> None:
        subject = f"{_notification_prefix(self.run, listener, early=early)}.event"
        self.connection.check_publishing(subject)
        with contextlib.suppress(Away, LogUnavailable):
            for recorded in events:
                await self.connection.publish(subject, notification_bytes(recorded))
        # Yield, so that nats-py's task sends the message before the caller continues to compute.
        for _ in range(2):
            await asyncio.sleep(0)

    @contextlib.asynccontextmanager
    async def listen(
        self, name: str, on_event: Callable[[Recorded], None], *, early: bool = False
    ) -> AsyncIterator[None]:
        inbox = _notification_prefix(self.run, name, early=early)

        def take(_: bytes, __: bytes, answer: Answer) -> None:
            if (recorded := notified_event(self.run, answer.data)) is not None:
                on_event(recorded)

        async with contextlib.AsyncExitStack() as stack:
            receiving = self.connection.receiving
            await self.connection.persist(lambda: stack.enter_async_context(receiving(inbox, take, _nothing)))
            await self.connection.persist(partial(self.connection.check_receiving, inbox))
            yield

    async def close(self) -> None:
        await self.connection.close()


def _notification_prefix(run: str, name: str, *, early: bool) -> str:
    return subjects.early_notifications(run, name) if early else subjects.notifications(run, name)


def _nothing() -> None:
    """Ignore a lost connection: notifications are lost with it."""


class _Found(NamedTuple):
    """Messages that are stored."""

    positions: Annotated[dict[tuple[str, str], int], doc("Positions by subject and id.")]
    last: Annotated[dict[str, int], doc("Last position of each subject; 0: none.")]
    repeated: Annotated[set[tuple[str, str]], doc("Those of `positions` whose stored bytes are others.")]


async def _find(stream: Stream, messages: Sequence[Message]) -> _Found:
    """Return what is stored of the messages."""
    missing: dict[str, set[str]] = {}
    for message in messages:
        missing.setdefault(message.subject, set()).add(message.id)
    stored: dict[tuple[str, str], int] = {}
    ours, repeated = {message.key: message.data for message in messages}, set[tuple[str, str]]()

    def note(message: Stored) -> None:
        ids = missing[message.subject]
        id_ = next((id_ for id_ in ids if is_message_id(message.id, id_)), None)
        if id_ is not None and (message.past_id is not None or _is_event(stream, message, id_)):
            ids.discard(id_)
            key = (message.subject, id_)
            stored[key] = message.position
            if message.data != ours[key]:  # also if it was removed, and only its id and position are left
                repeated.add(key)

    last = dict.fromkeys(missing, 0)
    for newest in await _last_of_each(stream, list(missing)):
        last[newest.subject] = newest.position
        note(newest)
    for subject, end in last.items():
        position = 1
        while missing[subject] and position <= end:  # oldest first, until none is missing
            page = await stream.page(position, end, subject, limit=_PAGE)
            for record in page:
                note(record)
            position = page[-1].position + 1
    return _Found(stored, last, repeated)


def _is_event(stream: Stream, message: Stored, id_: str) -> bool:
    """Return whether a message of the stream is the event. Among removed messages, only events have an id."""
    record = judged(stream.name, message)
    return isinstance(record, Recorded) and record.envelope.id == id_


async def _last_of_each(stream: Stream, subjects: Sequence[str]) -> list[Stored]:
    parts = (subjects[i : i + _SUBJECTS] for i in range(0, len(subjects), _SUBJECTS))
    return [stored for part in parts for stored in await stream.last_of_each(part)]
