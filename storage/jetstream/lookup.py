"""Where given events stand in a stream already, after an append was refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from storage.jetstream.append import Message
from storage.jetstream.stream import Stored, Stream

SUBJECTS = 256
"""Subjects in one question; the server answers with 1024 at most."""
_PAGE = 256


@dataclass(slots=True)
class Standing:
    """What was found. stored: position by (subject, id). last: last position by subject, 0 where there is none."""

    stored: dict[tuple[str, str], int] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)


async def standing(stream: Stream, messages: Sequence[Message]) -> Standing:
    """Where these events stand already, and what is last on their subjects."""
    wanted: dict[str, set[str]] = {}
    for message in messages:
        wanted.setdefault(message.subject, set()).add(message.id)
    result = Standing(last=dict.fromkeys(wanted, 0))
    subjects = list(wanted)
    for i in range(0, len(subjects), SUBJECTS):
        for found in await stream.last_of_each(subjects[i : i + SUBJECTS]):
            result.last[found.subject] = found.position
            _note(result, wanted[found.subject], found)
    for subject, ids in wanted.items():
        await _search(stream, subject, ids, result)
    return result


def _note(result: Standing, ids: set[str], found: Stored) -> None:
    if found.id in ids:
        ids.discard(found.id)
        result.stored[(found.subject, found.id)] = found.position


async def _search(stream: Stream, subject: str, ids: set[str], result: Standing) -> None:
    """Every message on the subject, oldest first, until all `ids` are found."""
    position, last = 1, result.last[subject]
    while ids and position <= last:
        page = await stream.page(position, last, subject, limit=_PAGE)
        for found in page:
            _note(result, ids, found)
        position = page[-1].position + 1
