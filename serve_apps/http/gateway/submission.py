"""`submit`: sends the items of a request's body to the run's inbox while they arrive."""

from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial

import msgspec

from schemas.inbox import PROMPTS
from schemas.outside_json import read_json
from schemas.submission import LineProblem, Submission, TakenPrompt
from serve_apps.http.gateway.refusals import Refused, whole_body
from serve_apps.rollouts.agents.off_loop import off_loop
from slime_events.client.inbox import InboxClient, produce
from slime_events.loop.prompts.json_line import without_mark
from slime_events.loop.prompts.outside import BadLine, Line, read_line
from storage.log import MAX_BATCH

JSON = "application/json"
MEDIA_TYPES = (JSON, "application/x-ndjson", "application/jsonl")
JSON_BYTES = 8 * 1024 * 1024
"""Limit of a JSON body in bytes: it is in memory as a whole, unlike a body of lines."""
LINES = 10 * MAX_BATCH
"""Most groups and errors that an answer lists."""
MOST_REFUSED = 20 * MAX_BATCH
"""Number of refused lines after which the rest is not read: the sender probably sent the wrong file."""
MOST_LINES = 1_000_000
"""Limit of lines or items in a request."""
Numbered = tuple[int, bytes]
"""Number of a line, from 1, and its bytes."""


async def submit(
    body: AsyncIterator[bytes],
    inbox: InboxClient,
    *,
    media: str,
    key: str | None,
    most: int,
    kind: str = PROMPTS,
) -> Submission:
    """Send all items of a body.

    media: one of MEDIA_TYPES. key: key of a single item that has none. most: limit of the body in bytes. kind: one of
    `ITEMS`. Raises Refused if the body is too large or not JSON, LogUnavailable, DeadlineExceeded. After an error,
    earlier items may already be accepted; sending the whole body again is safe.
    """
    taken = Submission(0, 0, [], [])
    if media == JSON:
        data = await whole_body(body, min(most, JSON_BYTES), f"send {MEDIA_TYPES[1]}, or several requests")
        lines = _items(await off_loop(len(data), partial(_raw_items, data, key)))
    else:
        lines = _lines(body, most)
    async for pack in _packs(lines):
        size = sum(len(data) for _, data in pack)
        read = await off_loop(size, partial(_read, pack, key if media == JSON else None, kind))
        await _send(inbox, read, taken)
        if taken.refused >= MOST_REFUSED:
            taken.unread = pack[-1][0] + 1
            break
    return taken


async def _send(inbox: InboxClient, lines: Iterable[Line | BadLine], taken: Submission) -> None:
    async for result in produce(inbox, lines, MAX_BATCH):
        names = len(taken.groups) + len(taken.errors) < LINES
        taken.more += not names
        if isinstance(result, BadLine):
            taken.refused += 1
            if names:
                taken.errors.append(LineProblem(int(result.place), result.field, result.message))
            continue
        taken.accepted += 1
        if names:
            taken.groups.append(TakenPrompt(result[0].key, result[1]))


def _read(pack: Sequence[Numbered], key: str | None, kind: str) -> list[Line | BadLine]:
    return [read_line(data, str(number), default=key, kind=kind) for number, data in pack]


def _raw_items(data: bytes, key: str | None) -> list[msgspec.Raw]:
    data = without_mark(data)
    try:
        many = data.lstrip()[:1] == b"["
        items = read_json(data, list[msgspec.Raw]) if many else [msgspec.Raw(data)]
    except msgspec.DecodeError as error:
        raise Refused(400, f"the body is not JSON: {error}") from error
    if key is not None and many:
        raise Refused(400, "Idempotency-Key is for a single item, and the body is a list: set `key` in each item")
    if len(items) > MOST_LINES:
        raise Refused(413, f"a request is limited to {MOST_LINES:,} items: split it into several requests")
    return items


async def _items(items: Sequence[msgspec.Raw]) -> AsyncIterator[Numbered]:
    for number, item in enumerate(items, 1):
        yield number, bytes(item)


async def _packs(lines: AsyncIterator[Numbered]) -> AsyncIterator[list[Numbered]]:
    """Yield lists of at most MAX_BATCH lines."""
    pack: list[Numbered] = []
    async for line in lines:
        pack.append(line)
        if len(pack) == MAX_BATCH:
            yield pack
            pack = []
    if pack:
        yield pack


async def _lines(body: AsyncIterator[bytes], most: int) -> AsyncIterator[Numbered]:
    """Yield the lines that are not empty while they arrive."""
    size, number = 0, 0
    begun, rest = list[bytes](), 0  # pieces of the incomplete line, and their bytes
    async for chunk in _ended(body):
        size += len(chunk)
        if size > most:
            message = (
                f"a request is limited to {most:,} bytes: split it into several requests; {number} lines were read"
            )
            raise Refused(413, message)
        *ends, last = chunk.split(b"\n")
        for end in ends:
            number += 1
            data = b"".join((*begun, end)).strip()
            begun, rest = [], 0
            if data:
                yield number, data
        if number > MOST_LINES:
            raise Refused(413, f"a request is limited to {MOST_LINES:,} lines: split it into several requests")
        begun.append(last)
        rest += len(last)
        if rest > JSON_BYTES:
            raise Refused(413, f"line {number + 1} is longer than {JSON_BYTES:,} bytes, the limit of a line")


async def _ended(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the body, with a line feed after a last line that has none."""
    end = b"\n"
    async for chunk in body:
        end = chunk[-1:] or end
        yield chunk
    if end != b"\n":
        yield b"\n"
