"""`submit`: the prompts of a request's body, sent to the run's inbox as they come in."""

from collections.abc import AsyncIterator, Iterable, Iterator

import msgspec

from schemas.inbox import PROMPTS
from schemas.outside_json import read_json
from schemas.submission import LineProblem, Submission, TakenPrompt
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
        lines = _items(
            await whole_body(body, min(most, JSON_BYTES), f"send {MEDIA_TYPES[1]}, or several requests"), key, kind
        )
        await _send(inbox, lines, taken)
        return taken
    async for pack in _packs(body, most, kind):
        await _send(inbox, pack, taken)
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


def _items(data: bytes, key: str | None, kind: str) -> Iterator[Line | BadLine]:
    data = without_mark(data)
    try:
        many = data.lstrip()[:1] == b"["
        items = read_json(data, list[msgspec.Raw]) if many else [msgspec.Raw(data)]
    except msgspec.DecodeError as error:
        raise Refused(400, f"not JSON: {error}") from error
    if key is not None and many:
        raise Refused(400, "Idempotency-Key names one prompt, and this is a list: give each a `key`")
    for number, item in enumerate(items, 1):
        yield read_line(bytes(item), str(number), default=key, kind=kind)


async def _packs(body: AsyncIterator[bytes], most: int, kind: str) -> AsyncIterator[list[Line | BadLine]]:
    """Lines as they come, at most MAX_BATCH at once."""
    rest, size, number = b"", 0, 0
    pack: list[Line | BadLine] = []
    async for chunk in _ended(body):
        size += len(chunk)
        if size > most:
            raise Refused(413, f"a request has {most:,} bytes at most: send several; {number} lines were read")
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > JSON_BYTES:
            raise Refused(413, f"line {number + len(lines) + 1} has more than {JSON_BYTES:,} bytes")
        for line in lines:
            number += 1
            if line.strip():
                pack.append(read_line(line.strip(), str(number), kind=kind))
            if len(pack) == MAX_BATCH:
                yield pack
                pack = []
    if pack:
        yield pack


async def _ended(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """With an end for the last line."""
    async for chunk in body:
        yield chunk
    yield b"\n"
