"""Looking at what stands in a stream: the last message under a filter, and where given ids are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from nats.aio.msg import Msg

from storage.jetstream_append import ID, Message
from storage.jetstream_connection import Connection

_SUBJECTS = 256
"""Subjects in one question; the server answers with 1024 at most."""
_PAGE = 256


@dataclass(slots=True)
class Standing:
    """What was found. stored: position by (subject, id). last: last position by subject, 0 where there is none."""

    stored: dict[tuple[str, str], int] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)


def sequence(message: Msg) -> int:
    """The position of a message that came by Direct Get."""
    return int(message.headers["Nats-Sequence"])


async def last_message(connection: Connection, stream: str, subject: str) -> Msg | None:
    """The last message under a filter."""
    found = await connection.direct_get(stream, {"last_by_subj": subject})
    return found[0] if found else None


async def standing(connection: Connection, stream: str, messages: Sequence[Message]) -> Standing:
    """Where these events stand already, and what is last on their subjects."""
    wanted: dict[str, set[str]] = {}
    for message in messages:
        wanted.setdefault(message.subject, set()).add(message.id)
    result = Standing(last=dict.fromkeys(wanted, 0))
    subjects = list(wanted)
    for i in range(0, len(subjects), _SUBJECTS):
        for found in await _last_of_each(connection, stream, subjects[i : i + _SUBJECTS]):
            subject = found.headers["Nats-Subject"]
            result.last[subject] = sequence(found)
            _note(result, subject, wanted[subject], found)
    for subject, ids in wanted.items():
        if result.last[subject] and ids:
            await _search(connection, stream, subject, ids, result)
    return result


def _note(result: Standing, subject: str, ids: set[str], message: Msg) -> None:
    identity = message.headers.get(ID)
    if identity in ids:
        ids.discard(identity)
        result.stored[(subject, identity)] = sequence(message)


async def _last_of_each(connection: Connection, stream: str, subjects: Iterable[str]) -> list[Msg]:
    left, found = set(subjects), []
    while left:
        page = await connection.direct_get(stream, {"multi_last": sorted(left)})
        if not page:
            break
        found += page
        left -= {message.headers["Nats-Subject"] for message in page}
    return found


async def _search(connection: Connection, stream: str, subject: str, ids: set[str], result: Standing) -> None:
    """Every message on the subject, oldest first, until all `ids` are found."""
    position = 1
    while ids and position <= result.last[subject]:
        body = {"seq": position, "batch": _PAGE, "next_by_subj": subject}
        page = await connection.direct_get(stream, body)
        if not page:
            return
        for message in page:
            _note(result, subject, ids, message)
        position = sequence(page[-1]) + 1
