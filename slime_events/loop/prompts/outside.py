"""Prompts on their way to a run's inbox: lines of JSON, sent in messages, and what became of each line."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import nats.errors
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NoReply

from schemas.errors import DeadlineExceeded, InboxFull, LogUnavailable
from schemas.inbox import PROMPTS, REWARDS, TRAJECTORIES, InboxPrompt, InboxReply
from schemas.outside import OutsideGroup, OutsideReward
from schemas.outside_json import read_any
from slime_events.loop.prompts.inbox_message import WrongField, as_carried
from slime_events.loop.prompts.json_line import BadField, fields_of, why_not, without_mark
from storage.log import MAX_BATCH

Item = InboxPrompt | OutsideGroup | OutsideReward
"""What producers send."""
ITEMS: dict[str, type[Item]] = {PROMPTS: InboxPrompt, TRAJECTORIES: OutsideGroup, REWARDS: OutsideReward}
"""By the last word of its subject, and of its route."""
AGAIN_S = (0.5, 2.0, 5.0)
LOOK_S = 0.5
"""Seconds between two looks whether a run takes prompts now."""
ROOM = 4096
"""Bytes of a message kept for its frame."""


@dataclass(frozen=True, slots=True)
class Line:
    """What is sent and where it stood, `file:line`."""

    place: str
    item: Item

    @property
    def key(self) -> str:
        """The sender's name for it."""
        return self.item.key


@dataclass(frozen=True, slots=True)
class BadLine:
    """A prompt that cannot be sent: where, which field, why."""

    place: str
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.field + ': ' if self.field else ''}{self.message}"


def read_line(
    data: bytes, place: str, *, key_field: str | None = None, default: str | None = None, kind: str = PROMPTS
) -> Line | BadLine:
    """One prompt as a JSON object, or what else is sent (`kind`). Its key is its field `key_field` (`key` where none is
    named), or `default`, or the sha256 of the line. `messages` is another name of `prompt`.
    """
    data = without_mark(data)
    try:
        fields = read_any(data)
    except msgspec.DecodeError as error:
        read = fields_of(data) if data.lstrip()[:1] == b"{" else BadField("", f"not JSON: {why_not(data, error)}")
        if isinstance(read, BadField):
            return BadLine(place, read.field, read.message)
        fields = read
    if not isinstance(fields, dict):
        return BadLine(place, "", "not a JSON object: write {...} with a prompt")
    try:
        fields = as_carried(fields)
    except WrongField as error:
        return BadLine(place, error.field, error.message)
    if kind == REWARDS:  # a sample has one reward: it needs no key
        return _line(fields, place, kind)
    if key_field and key_field not in fields:
        return BadLine(place, key_field, "missing, and --key-field says that it names the prompt")
    key = fields.pop(key_field or "key", None)
    fields["key"] = (default or hashlib.sha256(data).hexdigest()) if key is None else str(key)
    if "messages" in fields:
        if "prompt" in fields:
            return BadLine(place, "messages", "stands beside prompt: give one of them")
        fields["prompt"] = fields.pop("messages")
    return _line(fields, place, kind)


def _line(fields: dict[str, Any], place: str, kind: str) -> Line | BadLine:
    try:
        return Line(place, msgspec.convert(fields, ITEMS[kind]))
    except msgspec.ValidationError as error:
        message, _, field = str(error).partition(" - at `$")
        return BadLine(place, field.removeprefix(".").removesuffix("`"), message)


@dataclass(frozen=True, slots=True)
class InboxClient:
    """A run's inbox. max_bytes: of a message. again_s: seconds to wait before a message that could not be taken just
    now is sent again.
    """

    send: Callable[[bytes], Awaitable[InboxReply]]
    max_bytes: int
    again_s: tuple[float, ...] = AGAIN_S


class NobodyListens(LogUnavailable):
    """Nobody conducts the run just now."""


async def ask_inbox(
    client: Any, run: str, subject: str, data: bytes, reply_s: float, headers: dict[str, str] | None = None
) -> InboxReply:
    """One message over NATS, and the reply to it. Raises LogUnavailable where nobody takes it, DeadlineExceeded without
    a reply in time: whether it was taken is not known then, and to send it again is safe.
    """
    try:
        reply = await client.request(subject, data, timeout=reply_s, headers=headers)
    except NoRespondersError as error:
        raise NobodyListens(
            f"run {run} takes no prompts: it has not begun or is over (nobody listens on {subject})"
        ) from error
    except NoReply as error:
        raise DeadlineExceeded(
            f"run {run} did not answer within {reply_s:.0f} s; sending the same prompts again is safe"
        ) from error
    except nats.errors.Error as error:
        raise LogUnavailable(f"the NATS server of run {run} has gone ({error})") from error
    return msgspec.json.decode(reply.data, type=InboxReply)


def patient(
    ask: Callable[[bytes], Awaitable[InboxReply]],
    wait_s: float,
    is_over: Callable[[], bool],
    told: Callable[[], Awaitable[None]],
) -> Callable[[bytes], Awaitable[InboxReply]]:
    """`ask`, which waits `wait_s` for a run that takes no prompts yet, or whose conductor is replaced just now. told:
    is awaited once before it waits, and raises where it is in vain. is_over: nothing is to be waited for any more.
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
                await told()
                waits = True
            await asyncio.sleep(LOOK_S)

    return send


async def produce(
    inbox: InboxClient, lines: Iterable[Line | BadLine], batch: int
) -> AsyncIterator[tuple[Line, str] | BadLine]:
    """Send prompts, `batch` in a message; what became of each line, message by message: its group, or why not.

    The run takes a message as a whole: where it refuses some prompts, the others are sent again. More than its log
    stores at once are several messages. Raises LogUnavailable, and InboxFull where the run has prompts enough.
    """
    for pack in _packs(lines, min(batch, MAX_BATCH), inbox.max_bytes):
        good = []
        for line in pack:
            if isinstance(line, BadLine):
                yield line
            else:
                good.append(line)
        while good:
            reply = await _send(inbox, good)
            if reply.accepted:
                for taken in zip(good, reply.groups, strict=True):
                    yield taken
                break
            refused = {error.index: error for error in reply.errors}
            for index, error in sorted(refused.items()):
                yield BadLine(good[index].place, error.field, error.message)
            good = [line for index, line in enumerate(good) if index not in refused]


async def _send(inbox: InboxClient, lines: Sequence[Line]) -> InboxReply:
    """The reply to a message. One that could not be taken just now (no field is wrong) is sent again a few times."""
    data = msgspec.json.encode([line.item for line in lines])
    for pause in (*inbox.again_s, None):
        reply = await inbox.send(data)
        if reply.accepted or all(error.field for error in reply.errors):
            return reply
        if pause is not None:
            await asyncio.sleep(pause)
    error = InboxFull if reply.full else LogUnavailable
    raise error(f"the run does not take it now: {reply.errors[0].message}")


def _packs(lines: Iterable[Line | BadLine], count: int, max_bytes: int) -> Iterator[list[Line | BadLine]]:
    """Lines in messages of `count` prompts and `max_bytes` at most; a prompt that is longer is a bad line."""
    pack: list[Line | BadLine] = []
    total = 0
    for line in lines:
        size = len(msgspec.json.encode(line.item)) + 1 if isinstance(line, Line) else 0
        if size > max_bytes:
            line = BadLine(line.place, "prompt", f"it has {size} bytes, {max_bytes} is the most")
            size = 0
        if pack and (len(pack) >= count or total + size > max_bytes):
            yield pack
            pack, total = [], 0
        pack.append(line)
        total += size
    if pack:
        yield pack
