"""`JetStreamLog`: the event log of a run as one NATS JetStream stream.

    append    one atomic batch: fences by expected sequence, ids as message ids, one fsync (`sync_interval: always`)
    read      Direct Get to the end, then an ephemeral consumer to follow (storage/jetstream/read.py)
    consume   a durable pull consumer with explicit acks (storage/jetstream/consumer.py)

An acked event is on disk only where the server runs with `sync_interval: always`, as the embedded one does; in a stream
with three replicas it is then on two disks at least.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from schemas import subjects
from schemas.errors import ImpossibleCombination, LogDamaged, LogUnavailable, NoSpace
from schemas.foreign import is_message_id
from schemas.subjects import any_verb, check_token, every_event, is_token, matches
from storage.event_block import EventBlock
from storage.jetstream.address import NatsAddress
from storage.jetstream.answer import Answer
from storage.jetstream.append import Contradiction, Message, fences_of, headers_of, messages_of
from storage.jetstream.connection import Connection
from storage.jetstream.consumer import JetStreamConsumer, done_up_to
from storage.jetstream.ensure import ensure_stream
from storage.jetstream.long_stream import LongStream
from storage.jetstream.read import judged, last_event, read_blocks, read_events, read_records
from storage.jetstream.restore import Restoration
from storage.jetstream.retry import Away, OnWait, Retry, TooManyBatches, log_wait
from storage.jetstream.send import Refused, send
from storage.jetstream.stream import NotTheLast, Stored, Stream, widen_stream
from storage.jetstream.notification import notification_bytes, notified_event
from storage.log import HEADER_BYTES, MAX_EVENT_BYTES, Append, Fence, ForeignRecord, Recorded, Subjects, fence_lost

if TYPE_CHECKING:
    from storage.archive.reader import ArchiveReader

_log = logging.getLogger(__name__)

RETRY_S = 300.0
"""Seconds that a call waits for NATS to come back: longer than a machine takes to start again."""

KNOWN_SUBJECTS = 65536
"""Subjects whose last position a writer remembers, to spare a look-up when it writes there again without a fence."""

REMOVE_S = 10.0
_SUBJECTS, _PAGE = 256, 256
"""Subjects, and messages, in one question of a look-up; the server answers with 1024 at most."""


class Extent(NamedTuple):
    """first, last: positions in the log itself, and their bytes. past_bytes: of what is known of earlier ones."""

    first: int
    last: int
    bytes: int
    past_bytes: int


class JetStreamLog:
    """See the module, and `storage/log.py` for what each call promises."""

    def __init__(self, run: str, connection: Connection, stream: Stream) -> None:
        self.run = run
        self.connection = connection
        self._stream = stream
        self._known: OrderedDict[str, int] = OrderedDict()
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
        """Connect, and make the stream where there is none.

        server: a URL, with commas between several nodes of one cluster; or with credentials. replicas: copies of a new
        stream, each on another node. archive_url: a new log can let its beginning leave for that archive; see
        `ensure_stream` for one that is there. deadline_s: for opening. retry_s: for any later call while NATS is away,
        with one call of `on_wait`. Raises LogUnavailable, AccessDenied, MissingPart (server too old), RunNotFound
        (`create=False`), StorageError (other stream), ImpossibleCombination (replicas, and no cluster).
        """
        check_token(run, "run name")
        connection = await Connection.open(server, deadline_s=deadline_s, retry_s=retry_s, on_wait=on_wait)
        wanted: dict[str, Any] = {"create": create, "replicas": replicas, "archive_url": archive_url}
        try:
            return cls(run, connection, await ensure_stream(connection, run, **wanted, deadline_s=deadline_s))
        except BaseException:
            await connection.close()
            raise

    async def widen(self) -> None:
        """Let a log that an earlier version has made take the events that are new since."""
        if not self.lets_go:  # that one takes whatever comes in through its door
            await widen_stream(self._stream, self.run)

    async def append(self, appends: Sequence[Append]) -> list[int]:
        limit = min(MAX_EVENT_BYTES, self.connection.max_payload - HEADER_BYTES)
        positions = await self._store(messages_of(appends, limit))
        return [positions[(a.envelope.subject, a.envelope.id)] for a in appends]

    async def restore(self, records: Sequence[Recorded | ForeignRecord]) -> None:
        await Restoration(self._stream).store(records)

    async def _store(self, pending: list[Message]) -> dict[tuple[str, str], int]:
        """The position of each by subject and id. All are stored together, except for those that are there already."""
        positions = await self._stored_already(pending)
        pending = [message for message in pending if message.key not in positions]
        passed: dict[Fence, int] = {}
        retry = self.connection.retry()
        while pending:
            try:
                first = await self._send(pending, passed)
            except (Away, NoSpace) as error:  # room may be made
                if isinstance(error, TooManyBatches):
                    self._count_refused(error)
                await retry.pause(error)
                await self._stream.refresh(retry.left)
                continue
            except (Refused, Contradiction, NotTheLast) as refusal:
                pending = await self._after_refusal(refusal, pending, positions, passed, retry)
                continue
            positions |= {message.key: position for position, message in enumerate(pending, first)}
            self._remember({message.subject: positions[message.key] for message in pending if message.fence is None})
            break
        return positions

    def refused_batches(self) -> int:
        return self._refused_batches

    def _count_refused(self, error: TooManyBatches) -> None:
        """Report the first one, and then each tenfold: each costs a pause and is then stored, so nothing else shows."""
        self._refused_batches += 1
        if str(self._refused_batches).strip("0") == "1":
            _log.warning("append %d that NATS refused and that is sent again: %s", self._refused_batches, error)

    async def _stored_already(self, messages: Sequence[Message]) -> dict[tuple[str, str], int]:
        """Those of messages whose fence is over the subject of none of them: nothing else shows that they are stored.

        A fence that one of them moves refuses all of them the second time. The server knows an id for a while only, and
        after a restart none of what has left its stream.
        """
        for message in messages:
            if message.fence is None and self._stream.has_left(self._known.get(message.subject, 0)):
                del self._known[message.subject]
        moved = {subject for m in messages for subject in (m.subject, any_verb(m.subject))}
        apart = [
            m for m in messages if m.fence and m.fence.subject not in moved and not matches(m.fence.subject, m.subject)
        ]
        return (await _find(self._stream, apart))[0] if apart else {}

    async def _send(self, messages: Sequence[Message], passed: Mapping[Fence, int]) -> int:
        """The position of the first. Raises Refused, Contradiction, NotTheLast, Away."""
        whole, wanted = fences_of(self.run, messages, self._known, passed)
        sent = [(self._stream.incoming(m.subject), m.data) for m in messages]  # before the fences are judged
        headers = headers_of(messages, whole, await self._stream.to_expect(wanted), secrets.token_hex(11))
        return await send(self.connection, sent, headers)

    async def _after_refusal(
        self,
        refusal: Exception,
        pending: list[Message],
        positions: dict[tuple[str, str], int],
        passed: dict[Fence, int],
        retry: Retry,
    ) -> list[Message]:
        """What is still to be stored. Raises Conflict where another writer was first."""
        await self._stream.refresh()
        stored, last = await _find(self._stream, pending)
        positions |= stored
        left = [message for message in pending if message.key not in stored]
        learnt = False
        for fence, message in {message.fence: message for message in left if message.fence is not None}.items():
            end = await self._check_fence(fence, message)
            learnt |= passed.get(fence, fence.position) != end
            passed[fence] = end
        moved = {m.subject: last[m.subject] for m in left if m.fence is None}
        learnt |= any(self._known.get(subject, 0) != position for subject, position in moved.items())
        self._remember(moved)
        if len(left) == len(pending) and not learnt:
            if isinstance(refusal, Refused) and refusal.id_taken:
                suffix = secrets.token_hex(4)
                return [message.renamed(suffix) for message in left]
            await retry.pause("an append was refused, for a reason that has gone")
        return left

    async def _check_fence(self, fence: Fence, message: Message) -> int:
        """The position of the last record under a fence that holds; foreign ones do not count."""
        subject = ">" if fence.subject == every_event(self.run) else fence.subject
        event, end = await last_event(self._stream, subject)
        actual = event.position if event is not None else 0
        if actual != fence.position:
            raise fence_lost(f"{message.event_type} on {message.subject}", fence, actual)
        return end

    def _remember(self, positions: Mapping[str, int]) -> None:
        for subject, position in positions.items():
            self._known[subject] = position
            self._known.move_to_end(subject)
        while len(self._known) > KNOWN_SUBJECTS:
            self._known.popitem(last=False)

    def read(self, start: int = 1, subject: Subjects = None, *, follow: bool = False) -> AsyncIterator[Recorded]:
        """As `EventLog.read`. Raises SchemaError naming the position of an event that cannot be read, LogDamaged where
        one is missing, LogUnavailable.
        """
        return read_events(self._stream, max(start, 1), subject, follow=follow)

    def event_blocks(self, start: int, chain: bytes, every: int | None) -> AsyncGenerator[EventBlock, None]:
        return read_blocks(self._stream, max(start, 1), chain, every)

    def read_records(self, start: int = 1, *, follow: bool = False) -> AsyncIterator[Recorded | ForeignRecord]:
        return read_records(self._stream, max(start, 1), None, follow=follow)

    async def last(self, subject: str) -> Recorded | None:
        return (await last_event(self._stream, subject))[0]

    async def last_of_each(self, subjects: Sequence[str]) -> dict[str, Recorded]:
        found: dict[str, Recorded] = {}
        for stored in await self._stream.whole(await _last_of_each(self._stream, subjects)):
            record: Recorded | ForeignRecord | None = judged(self._stream.name, stored)
            if isinstance(record, ForeignRecord):
                record = await self.last(stored.subject)
            if isinstance(record, Recorded):
                found[stored.subject] = record
        return found

    async def subjects(self, pattern: str, start: int = 1) -> list[str]:
        named = await self._stream.subjects(pattern)
        return [subject for subject in named if all(map(is_token, subject.split(".")))]

    async def position(self) -> int:
        last = await self.last(">")
        return last.position if last is not None else 0

    async def end(self) -> int:
        return await self._stream.end()

    async def remove(self) -> None:
        """Delete the whole log on its server; for its maker, where nobody else reads it."""
        await self.connection.api(f"STREAM.DELETE.{self._stream.name}", deadline_s=REMOVE_S)
        if isinstance(self._stream, LongStream):
            await self.connection.api(f"STREAM.DELETE.{self._stream.past.name}", deadline_s=REMOVE_S)

    @property
    def lets_go(self) -> bool:
        """Whether `remove_archived` may be called: its stream was made for it."""
        return isinstance(self._stream, LongStream)

    async def remove_archived(self, archive: ArchiveReader, upto: int) -> None:
        if not isinstance(self._stream, LongStream):
            raise ImpossibleCombination(f"the log of run {self.run} was made to keep everything: nothing can leave it")
        from storage.jetstream.removal import remove_archived  # one process of a run needs it

        await remove_archived(self._stream, archive, upto)

    async def extent(self) -> Extent:
        """What of the log lies where."""
        state, past = (await self._stream.info())["state"], 0
        if isinstance(self._stream, LongStream):
            past = int((await self._stream.past.info())["state"]["bytes"])
        return Extent(max(1, int(state["first_seq"])), int(state["last_seq"]), int(state["bytes"]), past)

    async def consume(self, name: str, subject: str, *, lease_s: float = 30.0, start: int = 1) -> JetStreamConsumer:
        if isinstance(self._stream, LongStream):
            await self._check_queue(self._stream, name, subject, start)
        return await JetStreamConsumer.open(self.connection, self._stream.name, name, subject, lease_s, start)

    async def _check_queue(self, stream: LongStream, name: str, subject: str, start: int) -> None:
        """Raises LogDamaged where something that the queue has not done has left its stream."""
        left = await stream.left_from(subject, start)
        if left and await self.done_up_to(name) < left:
            raise LogDamaged(
                f"queue {name} of run {self.run} needs position {left}, which has left the log: only what every queue "
                "has done may be let go"
            )

    async def done_up_to(self, name: str) -> int:
        return await done_up_to(self.connection, self._stream.name, name)

    async def notify(self, listener: str, events: Sequence[Recorded], *, early: bool = False) -> None:
        subject = f"{_notification_prefix(self.run, listener, early=early)}.event"
        self.connection.check_publishing(subject)
        with contextlib.suppress(Away, LogUnavailable):
            for recorded in events:
                await self.connection.publish(subject, notification_bytes(recorded))
        # nats-py's own task sends it, with uvloop at the end of a cycle, and the caller may go on for long.
        for _ in range(2):
            await asyncio.sleep(0)

    @contextlib.asynccontextmanager
    async def listen(self, name: str, on_event: Callable[[Recorded], None], *, early: bool = False) -> AsyncIterator[None]:
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
    """What is told while the connection is lost is lost."""


async def _find(stream: Stream, messages: Sequence[Message]) -> tuple[dict[tuple[str, str], int], dict[str, int]]:
    """Positions of those of these events that are stored already, by (subject, id); the last of each subject, or 0."""
    missing: dict[str, set[str]] = {}
    for message in messages:
        missing.setdefault(message.subject, set()).add(message.id)
    stored: dict[tuple[str, str], int] = {}

    def note(found: Stored) -> None:
        wanted = missing[found.subject]
        named = next((id_ for id_ in wanted if is_message_id(found.id, id_)), None)
        if named is not None and (found.past_id is not None or _is_event(stream, found, named)):
            wanted.discard(named)
            stored[(found.subject, named)] = found.position

    last = dict.fromkeys(missing, 0)
    for newest in await _last_of_each(stream, list(missing)):
        last[newest.subject] = newest.position
        note(newest)
    for subject, end in last.items():
        position = 1
        while missing[subject] and position <= end:  # oldest first, until all are found
            page = await stream.page(position, end, subject, limit=_PAGE)
            for found in page:
                note(found)
            position = page[-1].position + 1
    return stored, last


def _is_event(stream: Stream, found: Stored, id_: str) -> bool:
    """Of what has left a stream this need not be asked: there only events have an id."""
    record = judged(stream.name, found)
    return isinstance(record, Recorded) and record.envelope.id == id_


async def _last_of_each(stream: Stream, subjects: Sequence[str]) -> list[Stored]:
    parts = (subjects[i : i + _SUBJECTS] for i in range(0, len(subjects), _SUBJECTS))
    return [stored for part in parts for stored in await stream.last_of_each(part)]
