"""Send prompts, trajectories and rewards to a run's inbox, and return the result of each line."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NoReply

from schemas.doc import doc
from schemas.errors import DeadlineExceeded, InboxFull, LogUnavailable
from schemas.inbox import InboxReply
from slime_events.loop.prompts.outside import BadLine, Line
from storage.log import MAX_BATCH

AGAIN_S = (0.5, 2.0, 5.0)
LOOK_S = 0.5
"""Seconds between two checks whether a run takes prompts."""
ROOM = 4096
"""Bytes of a message reserved for its frame."""
Encoded = tuple[Line, bytes]
"""A line, and its item as JSON."""


@dataclass(frozen=True, slots=True)
class InboxClient:
    """Connection to a run's inbox."""

    send: Annotated[Callable[[bytes], Awaitable[InboxReply]], doc("sends a message and returns the reply")]
    max_bytes: Annotated[int, doc("most bytes of a message")]
    again_s: Annotated[
        tuple[float, ...], doc("pauses in seconds before a message is sent again, if it was not taken")
    ] = AGAIN_S


class NobodyListens(LogUnavailable):
    """No conductor runs now."""


async def ask_inbox(
    client: Client, run: str, subject: str, data: bytes, reply_s: float, headers: dict[str, str] | None = None
) -> InboxReply:
    """Send a message over NATS, and return the reply to it.

    Raises LogUnavailable if no conductor takes it, and DeadlineExceeded without a reply in time: then it is unknown
    whether the message was taken, and sending it again is safe.
    """
    try:
        reply = await client.request(subject, data, timeout=reply_s, headers=headers)
    except NoRespondersError as error:
        raise NobodyListens(
            f"run {run} takes no prompts: it has not started or is over (no process listens on {subject})"
        ) from error
    except NoReply as error:
        raise DeadlineExceeded(
            f"run {run} did not answer within {reply_s:.0f} s; sending the same prompts again is safe"
        ) from error
    except nats.errors.Error as error:
        raise LogUnavailable(f"the NATS server of run {run} is gone ({error})") from error
    return msgspec.json.decode(reply.data, type=InboxReply)


def patient(
    ask: Callable[[bytes], Awaitable[InboxReply]],
    wait_s: float,
    is_over: Callable[[], bool],
    before_wait: Callable[[], Awaitable[None]],
) -> Callable[[bytes], Awaitable[InboxReply]]:
    """Return `ask` with a wait of up to `wait_s` for a run that takes no prompts yet, or replaces its conductor.

    before_wait: awaited once before the wait; it raises if waiting is useless. is_over: whether to stop waiting.
    """

    async def send(data: bytes) -> InboxReply:
        end, waits = time.monotonic() + wait_s, False
        while True:
            try:
                return await ask(data)
            except (LogUnavailable, DeadlineExceeded):
                if is_over() or time.monotonic() > end:
                    raise
            if not waits:
                await before_wait()
                waits = True
            await asyncio.sleep(LOOK_S)

    return send


async def produce(
    inbox: InboxClient, lines: Iterable[Line | BadLine], batch: int
) -> AsyncIterator[tuple[Line, str] | BadLine]:
    """Send prompts, `batch` per message, and yield the result of each line: its group, or the line's error.

    The run takes or refuses a message as a whole: if it refuses some prompts, the rest are sent again. Prompts that do
    not fit in a single append of the log are sent in several messages. Raises LogUnavailable, and InboxFull if the run
    has enough prompts.
    """
    for pack in _packs(lines, min(batch, MAX_BATCH), inbox.max_bytes):
        good: list[Encoded] = []
        for line in pack:
            if isinstance(line, BadLine):
                yield line
            else:
                good.append(line)
        while good:
            reply = await _send(inbox, b"[%b]" % b",".join(item for _, item in good))
            if reply.accepted:
                for (taken, _), group in zip(good, reply.groups, strict=True):
                    yield taken, group
                break
            refused = {error.index: error for error in reply.errors}
            for index, error in sorted(refused.items()):
                yield BadLine(good[index][0].place, error.field, error.message)
            good = [line for index, line in enumerate(good) if index not in refused]


async def _send(inbox: InboxClient, data: bytes) -> InboxReply:
    """Return the reply to a message. A message that could not be taken now (no field is wrong) is sent again."""
    for pause in (*inbox.again_s, None):
        reply = await inbox.send(data)
        if reply.accepted or all(error.field for error in reply.errors):
            return reply
        if pause is not None:
            await asyncio.sleep(pause)
    error = InboxFull if reply.full else LogUnavailable
    raise error(f"the run cannot take the message now: {reply.errors[0].message}")


def _packs(lines: Iterable[Line | BadLine], count: int, max_bytes: int) -> Iterator[list[Encoded | BadLine]]:
    """Yield lines in messages of at most `count` prompts and `max_bytes`; a longer prompt is a bad line."""
    pack: list[Encoded | BadLine] = []
    total = 0
    for line in lines:
        item = msgspec.json.encode(line.item) if isinstance(line, Line) else b""
        size = len(item) + 1 if item else 0  # with a comma or a bracket
        entry = line if isinstance(line, BadLine) else (line, item)
        if size > max_bytes:
            entry = BadLine(line.place, "prompt", f"it has {size} bytes, {max_bytes} is the most")
            size = 0
        if pack and (len(pack) >= count or total + size > max_bytes):
            yield pack
            pack, total = [], 0
        pack.append(entry)
        total += size
    if pack:
        yield pack
