"""`submit`: the prompts of a request's body, sent to the run's inbox as they come in."""

from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial

import msgspec

from schemas.inbox import PROMPTS
from schemas.outside_json import read_json
from schemas.submission import LineProblem, Submission, TakenPrompt
from serve_apps.agents.off_loop import off_loop
from serve_apps.gateway.refusals import Refused, whole_body
from slime_events.loop.prompts.json_line import without_mark
from slime_events.loop.prompts.outside import BadLine, InboxClient, Line, produce, read_line
from storage.log import MAX_BATCH

JSON = "application/json"
MEDIA_TYPES = (JSON, "application/x-ndjson", "application/jsonl")
JSON_BYTES = 8 * 1024 * 1024
"""Of a body that is one JSON value: it is held in memory whole. Lines are not."""
LINES = 10 * MAX_BATCH
"""So many groups and errors are named in an answer."""
MOST_REFUSED = 20 * MAX_BATCH
"""Lines that are refused, after which no more are looked at: the file is another one than its sender thinks."""
MOST_LINES = 1_000_000
"""Of a request."""
Numbered = tuple[int, bytes]
"""A line, from 1, and its bytes."""


async def submit(
    body: AsyncIterator[bytes],
    inbox: InboxClient,
    *,
    media: str,
    key: str | None,
    most: int,
    kind: str = PROMPTS,
) -> Submission:
    """Send all items of a body. media: of MEDIA_TYPES. key: of a single one that has none. most: bytes of all. kind: of
    `ITEMS`.

    Raises Refused for a body that is too large or is no JSON, LogUnavailable, DeadlineExceeded. What was sent before is
    taken then; to send all of it again is safe.
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
        raise Refused(400, f"not JSON: {error}") from error
    if key is not None and many:
        raise Refused(400, "Idempotency-Key names one prompt, and this is a list: give each a `key`")
    if len(items) > MOST_LINES:
        raise Refused(413, f"a request has {MOST_LINES:,} items at most: send several")
    return items


async def _items(items: Sequence[msgspec.Raw]) -> AsyncIterator[Numbered]:
    for number, item in enumerate(items, 1):
        yield number, bytes(item)


async def _packs(lines: AsyncIterator[Numbered]) -> AsyncIterator[list[Numbered]]:
    """At most MAX_BATCH at once."""
    pack: list[Numbered] = []
    async for line in lines:
        pack.append(line)
        if len(pack) == MAX_BATCH:
            yield pack
            pack = []
    if pack:
        yield pack


async def _lines(body: AsyncIterator[bytes], most: int) -> AsyncIterator[Numbered]:
    """Lines as they come, without empty ones."""
    size, number = 0, 0
    begun, rest = list[bytes](), 0  # the pieces of the line that is under way, and their bytes
    async for chunk in _ended(body):
        size += len(chunk)
        if size > most:
            raise Refused(413, f"a request has {most:,} bytes at most: send several; {number} lines were read")
        *ends, last = chunk.split(b"\n")
        for end in ends:
            number += 1
            data = b"".join((*begun, end)).strip()
            begun, rest = [], 0
            if data:
                yield number, data
        if number > MOST_LINES:
            raise Refused(413, f"a request has {MOST_LINES:,} lines at most: send several")
        begun.append(last)
        rest += len(last)
        if rest > JSON_BYTES:
            raise Refused(413, f"line {number + 1} has more than {JSON_BYTES:,} bytes")


async def _ended(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """With an end for the last line, where it has none."""
    end = b"\n"
    async for chunk in body:
        end = chunk[-1:] or end
        yield chunk
    if end != b"\n":
        yield b"\n"
