"""Read a stream in order: to its end in bulk or in pages (Direct Get), then new events with an ephemeral consumer.

A read-only connection has no consumers: it reads in pages and polls for new events. Events that all engines follow are
announced (storage/jetstream/announcements.py) and read in pages too.

All readers check positions. A gap in the stream is `LogDamaged`. A consumer that skips an event, or is silent because
its server is gone, is replaced: reading resumes after the last event that was returned.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence

from schemas.codec import WholeEnvelope, enclosed
from schemas.errors import LogDamaged
from schemas.foreign import all_events
from schemas.subjects import named_by, run_of_stream, stream_name
from storage.cancellation import end_all
from storage.event_block import MANY, EventBlock, Part
from storage.hash_chain import link_all
from storage.jetstream.announcements import Announcements
from storage.jetstream.answer import message_ids
from storage.jetstream.connection import QUIET_S
from storage.jetstream.pull import BULK_FROM, Pull, Pulled, ephemeral, read_bulk
from storage.jetstream.retry import Away, Retry
from storage.jetstream.stream import PAGE, PAGE_BYTES, Stored, Stream
from storage.log import ForeignRecord, Recorded, Subjects, is_wanted, record_of

_REQUEST_S = 30.0
AHEAD = 4
"""Pages requested at once, while each is full: the server then never waits for the reader."""
LOOK_S = 0.2
"""Seconds between two polls for new events, if no consumer may be created."""


def judged(stream: str, message: Stored | Pulled) -> Recorded | ForeignRecord:
    """Decode a message of a run's stream. A SchemaError names the position and the subject."""
    return record_of(run_of_stream(stream), message.position, message.subject, message.id, message.data)


def _judged_all(run: str, stored: list[Stored]) -> Iterator[Recorded | ForeignRecord]:
    """Decode many messages, in a fraction of the time if all of them are events."""
    for begin in range(0, len(stored), MANY):
        some = stored[begin : begin + MANY]
        events = _all_events(run, some, [message.data for message in some])
        if events is None:
            yield from (judged(stream_name(run), message) for message in some)
            continue
        for message, whole in zip(some, events, strict=True):
            yield Recorded(message.position, message.subject, enclosed(whole, whole.event), message.data)


def _all_events(run: str, stored: list[Stored], datas: list[bytes]) -> Sequence[WholeEnvelope] | None:
    is_live = all(message.past_id is None for message in stored)
    ids = message_ids([message.head for message in stored]) if is_live else [message.id for message in stored]
    return all_events(run, [message.subject for message in stored], ids, datas)


async def read_events(stream: Stream, start: int, subject: Subjects, *, follow: bool) -> AsyncIterator[Recorded]:
    """See `EventLog.read`."""
    async with contextlib.aclosing(read_records(stream, start, subject, follow=follow)) as records:
        async for record in records:
            if isinstance(record, Recorded):
                yield record


async def read_records(
    stream: Stream, start: int, subject: Subjects, *, follow: bool
) -> AsyncGenerator[Recorded | ForeignRecord, None]:
    """See `EventLog.read_records`; with a filter."""
    position = start
    paged = subject if isinstance(subject, str) else None  # pages have one filter at most
    retry: Retry | None = None
    polls = follow and stream.connection.reads_only
    async with contextlib.AsyncExitStack() as stack:
        hears = paged is not None and follow and not polls
        news = await Announcements.of(stream.connection, stream.run, paged, stack) if hears and paged else None
        while True:
            seen = await stream.end() if polls else 0
            end = await stream.end(paged)
            async with contextlib.aclosing(_lists(stream, position, end, paged)) as lists:
                async for some in lists:
                    for record in _judged_all(stream.run, some):
                        position = record.position + 1
                        if paged or is_wanted(record.subject, subject):
                            yield record
            position = max(position, end + 1)
            if not follow:
                return
            if polls:
                while await stream.end() <= seen:  # noqa: ASYNC110  another process's log
                    await asyncio.sleep(LOOK_S)
                continue
            try:
                live = _live(stream, position, subject) if news is None else _announced(stream, position, paged, news)
                async with contextlib.aclosing(live):
                    async for record in live:
                        position = record.position + 1
                        yield record
                retry = None
            except Away as error:
                retry = retry or stream.connection.retry()
                await retry.pause(error)


async def _announced(
    stream: Stream, position: int, subject: str | None, news: Announcements
) -> AsyncGenerator[Recorded | ForeignRecord, None]:
    """Yield records from `position` on as they are announced. Ends when the log must be asked for its end."""
    while position <= (announced := await news.wait()):
        page = await stream.glance(position, subject)
        for record in _judged_all(stream.run, page):
            position = record.position + 1
            yield record
        if position <= announced:
            return


async def _lists(stream: Stream, position: int, end: int, subject: str | None) -> AsyncGenerator[list[Stored], None]:
    """Yield messages in bulk if there are many, else (and after any error) in pages. Raises LogDamaged for a gap."""
    if position <= end and subject is not None and (named := named_by(subject)):
        yield await _of_entity(stream, position, end, named)
        return
    if subject is None and end - position >= BULK_FROM and not stream.connection.reads_only:
        if position < (first := await stream.first()):
            async with contextlib.aclosing(pages(stream, position, first - 1, None)) as paged:
                async for page in paged:
                    yield page
            position = first
        with contextlib.suppress(Away):
            async with contextlib.aclosing(read_bulk(stream, position, end)) as bulk:
                async for some in bulk:
                    position = some[-1].position + 1
                    yield some
    async with contextlib.aclosing(pages(stream, position, end, subject)) as paged:
        async for page in paged:
            yield page


async def _of_entity(stream: Stream, position: int, end: int, subjects: list[str]) -> list[Stored]:
    """Read subject by subject: the server finds each at once, but scans the whole stream for a filter with `*`."""
    lasts = [last for last in await stream.last_of_each(subjects) if last.position >= position]
    parts = await asyncio.gather(*(_whole(pages(stream, position, last.position, last.subject)) for last in lasts))
    messages = [stored for part in parts for stored in part if stored.position <= end]
    return sorted(messages, key=lambda stored: stored.position)


async def _whole(pages_of: AsyncGenerator[list[Stored], None]) -> list[Stored]:
    async with contextlib.aclosing(pages_of) as paged:
        return [stored async for page in paged for stored in page]


async def pages(stream: Stream, position: int, end: int, subject: str | None) -> AsyncGenerator[list[Stored], None]:
    """Yield pages from `position` to `end`, a known match, under a filter.

    The next page is requested while one is read. Without a filter all positions are known, so the next AHEAD pages are.
    """
    ahead, next_start = deque[asyncio.Task[list[Stored]]](), position

    def ask() -> None:
        nonlocal next_start
        ahead.append(asyncio.create_task(stream.page(next_start, end, subject)))
        next_start += PAGE

    try:
        while ahead or next_start <= end:
            if not ahead:
                ask()
            page = await stream.whole(await ahead[0])
            ahead.popleft()
            depth = AHEAD if subject is None and len(page) == PAGE else 1
            if depth == 1:  # the next start is known only now: a page may also end at its size limit
                await end_all(*ahead)
                ahead.clear()
                next_start = page[-1].position + 1
            while next_start <= end and len(ahead) < depth:
                ask()
            page = [stored for stored in page if stored.position <= end]
            whole = len(page) if subject is not None else _in_order(page, position)
            yield page[:whole]
            if whole < len(page):
                raise LogDamaged(
                    f"stream {stream.name} lacks position {position + whole}: the next is {page[whole].position}"
                )
            position += whole
    finally:
        await end_all(*ahead)


def _in_order(page: list[Stored], position: int) -> int:
    """Return how many messages of a page follow each other without a gap, from `position` on."""
    return next((n for n, stored in enumerate(page) if stored.position != position + n), len(page))


async def read_blocks(stream: Stream, start: int, chain: bytes, every: int | None) -> AsyncGenerator[EventBlock, None]:
    """See `HasEventBlocks`. Without `every`, a block is small enough for the processor's cache."""
    end, first, stored = await stream.end(), start, list[Stored]()
    async with contextlib.aclosing(_lists(stream, start, end, None)) as lists:
        async for some in lists:
            stored += some
            while stored:
                count = min(MANY, len(stored)) if every is None else every - (first - 1) % every
                if count > len(stored) and first + len(stored) <= end:
                    break
                parts, datas = _events_of(stream.run, stored[:count])
                if parts:
                    before, chain = link_all(chain, datas)
                    last = parts[-1].first + len(parts[-1].events) - 1
                    yield EventBlock(parts[0].first, last, before, chain, iter(parts))
                first += min(count, len(stored))
                del stored[:count]


def _events_of(run: str, stored: list[Stored]) -> tuple[list[Part], list[bytes]]:
    """Return the events in some messages, and the bytes of each."""
    parts, datas = list[Part](), list[bytes]()
    for begin in range(0, len(stored), MANY):
        some = stored[begin : begin + MANY]
        some_datas = [message.data for message in some]
        decoded = _all_events(run, some, some_datas)
        if decoded is not None:
            parts.append(Part(some[0].position, decoded))
            datas += some_datas
            continue
        events = [record for record in _judged_all(run, some) if isinstance(record, Recorded)]
        parts += [Part(event.position, [event.envelope]) for event in events]
        datas += [event.data for event in events]
    return parts, datas


async def last_event(stream: Stream, subject: str) -> tuple[Recorded | None, int]:
    """Return the last event under a filter, and the position of the last record there (0: none)."""
    newest = await stream.last(subject)
    if newest is None:
        return None, 0
    if (event := _last_of(await stream.whole([newest]), stream)) is not None:
        return event, newest.position
    # The server cannot search backwards under a filter: read from further and further back up to the last record.
    width = PAGE
    while True:
        start, event = max(1, newest.position - width), None
        async with contextlib.aclosing(pages(stream, start, newest.position, subject)) as paged:
            async for page in paged:
                event = _last_of(page, stream) or event
        if event is not None or start == 1:
            return event, newest.position
        width *= 8


def _last_of(page: list[Stored], stream: Stream) -> Recorded | None:
    records = (judged(stream.name, stored) for stored in reversed(page))
    return next((record for record in records if isinstance(record, Recorded)), None)


async def _live(stream: Stream, position: int, subject: Subjects) -> AsyncGenerator[Recorded | ForeignRecord, None]:
    """Yield records from `position` on as they arrive. Ends if one may be missing; raises Away if it cannot start."""
    connection = stream.connection
    async with (
        ephemeral(connection, stream.name, position, subject, 2 * _REQUEST_S) as name,
        Pull(connection, stream.name, name) as pull,
    ):
        checked = 0
        async for pulled in deliveries(pull):
            if subject is None and pulled.position != position:
                return
            if subject is not None and pulled.number > checked:
                checked = pulled.number + len(pull.buffer)
                if await stream.first() > position:
                    return  # a matching event may have been removed before it was delivered: read it from the past
            position = pulled.position + 1
            yield judged(stream.name, pulled)


async def deliveries(pull: Pull) -> AsyncIterator[Pulled]:
    """Yield the consumer's messages until one may be missing."""
    number = 0
    while not pull.gone and not pull.breaks:
        if pull.idle:
            try:
                await pull.ask(PAGE, expires_s=_REQUEST_S, max_bytes=PAGE_BYTES)
            except Away:
                return
        while pull.buffer:
            pulled = pull.buffer.popleft()
            number += 1
            if pulled.number != number:
                return
            yield pulled
        if not pull.idle and not await pull.wait(_REQUEST_S + QUIET_S):
            return
