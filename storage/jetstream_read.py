"""Reading a stream in order: Direct Get in pages up to its end, then an ephemeral consumer for what comes.

Both count. A hole in the positions is `LogDamaged`; a consumer that skips one is thrown away and made anew, and so is
one that a restart of the server took with it: reading goes on after the last event that was given out.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import nats.nuid
from nats.aio.msg import Msg

from schemas.codec import decode
from schemas.errors import LogDamaged, SchemaError, StorageError
from schemas.subjects import stream_name
from storage.jetstream_connection import QUIET_S, Away, Connection
from storage.jetstream_lookup import sequence
from storage.jetstream_pull import Pull, Pulled
from storage.log import Recorded

PAGE = 1000
"""Messages in one Direct Get; the server allows 1024."""
PAGE_BYTES = 16 * 1024 * 1024
_REQUEST_S = 30.0


def recorded_of(position: int, subject: str, data: bytes) -> Recorded:
    """Decoded. A SchemaError names the position and the subject."""
    try:
        return Recorded(position, subject, decode(data), data)
    except SchemaError as error:
        raise type(error)(f"position {position} ({subject}): {error}") from error


async def read_events(
    connection: Connection, run: str, start: int, subject: str | None, *, follow: bool
) -> AsyncIterator[Recorded]:
    """See `EventLog.read`."""
    stream, position = stream_name(run), start
    while True:
        end = await _end(connection, stream)
        async for recorded in _stored(connection, stream, position, end, subject):
            position = recorded.position + 1
            yield recorded
        position = max(position, end + 1)
        if not follow:
            return
        async with contextlib.aclosing(_live(connection, stream, position, subject)) as live:
            async for recorded in live:
                position = recorded.position + 1
                yield recorded


async def _end(connection: Connection, stream: str) -> int:
    return int((await connection.api(f"STREAM.INFO.{stream}"))["state"]["last_seq"])


async def _stored(
    connection: Connection, stream: str, position: int, end: int, subject: str | None
) -> AsyncIterator[Recorded]:
    """Everything from `position` to `end`; the next page is under way while one is given out."""
    page = asyncio.create_task(_page(connection, stream, position, subject))
    try:
        while position <= end:
            messages = await page
            if messages:
                page = asyncio.create_task(_page(connection, stream, sequence(messages[-1]) + 1, subject))
            for message in messages:
                found = sequence(message)
                if subject is None and found != position:
                    raise LogDamaged(f"stream {stream} has no position {position}, {found} comes next")
                if found > end:
                    return
                yield recorded_of(found, message.headers["Nats-Subject"], message.data)
                position = found + 1
            if not messages:
                if subject is None:
                    raise LogDamaged(f"stream {stream} has no position {position}, though {end} is its last")
                return
    finally:
        page.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await page


async def _page(connection: Connection, stream: str, position: int, subject: str | None) -> list[Msg]:
    body: dict[str, Any] = {"seq": position, "batch": PAGE, "max_bytes": PAGE_BYTES}
    return await connection.direct_get(stream, body if subject is None else body | {"next_by_subj": subject})


async def _live(
    connection: Connection, stream: str, position: int, subject: str | None
) -> AsyncGenerator[Recorded, None]:
    """Events from `position` on as they come. Ends when it is not sure to have seen all."""
    name = nats.nuid.NUID().next().decode()
    config: dict[str, Any] = {
        "name": name,
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": position,
        "ack_policy": "none",
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": int(2 * _REQUEST_S * 1e9),
    }
    if subject is not None:
        config["filter_subject"] = subject
    await connection.api(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})
    try:
        async with Pull(connection, stream, name) as pull:
            async for pulled in deliveries(pull):
                if subject is None and pulled.position != position:
                    return
                position = pulled.position + 1
                yield recorded_of(pulled.position, pulled.message.subject, pulled.message.data)
    finally:
        with contextlib.suppress(StorageError):
            await connection.tell_api(f"CONSUMER.DELETE.{stream}.{name}")


async def deliveries(pull: Pull) -> AsyncIterator[Pulled]:
    """What the consumer sends, as long as it is certain that nothing is missing in between."""
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
