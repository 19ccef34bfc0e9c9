"""Reading a stream in order: up to its end in bulk or in pages (Direct Get), then an ephemeral consumer for new events.

A connection that may only read has no consumers: it reads in pages and looks for new events from time to time.

All check positions. A hole in the stream is `LogDamaged`. A consumer that skips an event, or falls silent because its
server has gone, is replaced: reading goes on after the last event that was given out.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator

from schemas.codec import decode
from schemas.errors import LogDamaged, SchemaError
from storage.cancellation import end_all
from storage.event_block import EventBlock, arrays_of
from storage.hash_chain import link_all
from storage.jetstream.connection import QUIET_S
from storage.jetstream.pull import BULK_FROM, Pull, Pulled, ephemeral, read_bulk
from storage.jetstream.retry import Away, Retry
from storage.jetstream.stream import PAGE, PAGE_BYTES, Stored, Stream
from storage.log import Recorded, Subjects, is_wanted

_REQUEST_S = 30.0
AHEAD = 4
"""Pages that are asked for at once, while each is full: the server then never waits for the reader."""
LOOK_S = 0.2
"""Seconds between two looks for new events where no consumer may be made."""


def recorded_of(message: Stored | Pulled) -> Recorded:
    """Decoded. A SchemaError names the position and the subject."""
    try:
        return Recorded(message.position, message.subject, decode(message.data), message.data)
    except SchemaError as error:
        raise type(error)(f"position {message.position} ({message.subject}): {error}") from error


async def read_events(stream: Stream, start: int, subject: Subjects, *, follow: bool) -> AsyncIterator[Recorded]:
    """See `EventLog.read`."""
    position = start
    paged = subject if isinstance(subject, str) else None  # pages have one filter at most
    retry: Retry | None = None
    polls = follow and stream.connection.reads_only
    while True:
        seen = await stream.end() if polls else 0
        end = await stream.end(paged)
        async with contextlib.aclosing(_lists(stream, position, end, paged)) as lists:
            async for some in lists:
                for stored in some:
                    position = stored.position + 1
                    if paged or is_wanted(stored.subject, subject):
                        yield recorded_of(stored)
        position = max(position, end + 1)
        if not follow:
            return
        if polls:
            while await stream.end() <= seen:  # noqa: ASYNC110  another process's log
                await asyncio.sleep(LOOK_S)
            continue
        try:
            async with contextlib.aclosing(_live(stream, position, subject)) as live:
                async for recorded in live:
                    position = recorded.position + 1
                    yield recorded
            retry = None
        except Away as error:
            retry = retry or stream.connection.retry()
            await retry.pause(error)


async def _lists(stream: Stream, position: int, end: int, subject: str | None) -> AsyncGenerator[list[Stored], None]:
    """In bulk where it is much, else (and after any trouble) in pages. Raises LogDamaged for a hole."""
    if subject is None and end - position >= BULK_FROM and not stream.connection.reads_only:
        if position < (first := await stream.first()):
            async with contextlib.aclosing(_pages(stream, position, first - 1, None)) as pages:
                async for page in pages:
                    yield page
            position = first
        with contextlib.suppress(Away):
            async with contextlib.aclosing(read_bulk(stream, position, end)) as bulk:
                async for some in bulk:
                    position = some[-1].position + 1
                    yield some
    async with contextlib.aclosing(_pages(stream, position, end, subject)) as pages:
        async for page in pages:
            yield page


async def _pages(stream: Stream, position: int, end: int, subject: str | None) -> AsyncGenerator[list[Stored], None]:
    """The next page is requested while one is read; of a whole stream, whose positions are known, the next AHEAD."""
    ahead, asked = deque[asyncio.Task[list[Stored]]](), position

    def ask() -> None:
        nonlocal asked
        ahead.append(asyncio.create_task(stream.page(asked, end, subject)))
        asked += PAGE

    try:
        while ahead or asked <= end:
            if not ahead:
                ask()
            page = await stream.whole(await ahead[0])
            ahead.popleft()
            depth = AHEAD if subject is None and len(page) == PAGE else 1
            if depth == 1:  # where the next begins is known only now: a page ends at its bytes too
                await end_all(*ahead)
                ahead.clear()
                asked = page[-1].position + 1
            while asked <= end and len(ahead) < depth:
                ask()
            page = [stored for stored in page if stored.position <= end]
            whole = len(page) if subject is not None else _in_order(page, position)
            yield page[:whole]
            if whole < len(page):
                raise LogDamaged(
                    f"stream {stream.name} has no position {position + whole}, {page[whole].position} comes next"
                )
            position += whole
    finally:
        await end_all(*ahead)


def _in_order(page: list[Stored], position: int) -> int:
    """How many of them follow each other without a hole, from `position` on."""
    return next((n for n, stored in enumerate(page) if stored.position != position + n), len(page))


async def read_blocks(stream: Stream, start: int, chain: bytes, every: int | None) -> AsyncGenerator[EventBlock, None]:
    """See `HasEventBlocks`. Without `every` a block ends with each answer of the server."""
    end, first, datas = await stream.end(), start, list[bytes]()
    async with contextlib.aclosing(_lists(stream, start, end, None)) as lists:
        async for some in lists:
            datas += [stored.data for stored in some]
            while datas:
                count = len(datas) if every is None else every - (first - 1) % every
                if count > len(datas) and first + len(datas) <= end:
                    break
                part = datas[:count]
                before, chain = link_all(chain, part)
                yield EventBlock(first, first + len(part) - 1, before, chain, arrays_of(part))
                first += len(part)
                del datas[:count]


async def _live(stream: Stream, position: int, subject: Subjects) -> AsyncGenerator[Recorded, None]:
    """Events from `position` on as they come. Ends where one may be missing; Away where it cannot begin."""
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
                    return  # something that was wanted may have left before it came: it is read where it is now
            position = pulled.position + 1
            yield recorded_of(pulled)


async def deliveries(pull: Pull) -> AsyncIterator[Pulled]:
    """The consumer's messages, as long as none can be missing in between."""
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
