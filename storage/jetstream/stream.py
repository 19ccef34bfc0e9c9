"""`Stream`: one JetStream stream, a run's configuration of it, and look-ups that never return stale answers.

Direct Get is fast, but any replica answers it, and a lagging replica may lack acked messages. So if a stream has
replicas, single look-ups go to its leader. A page is requested up to a position that the leader has named, so an empty
page means that the replica lags.
"""

import asyncio
import base64
import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from schemas.doc import doc
from schemas.errors import LogDamaged
from schemas.subjects import run_of_stream, stream_name, stream_subjects
from storage.jetstream.answer import Answer, message_id, subject_text
from storage.jetstream.connection import Connection
from storage.jetstream.error_codes import ErrorCode
from storage.jetstream.retry import Retry
from storage.log import HEADER_BYTES, MAX_EVENT_BYTES

logger = logging.getLogger(__name__)

PAGE = 1000
"""Messages in one Direct Get; the server allows 1024."""
PAGE_BYTES = 16 * 1024 * 1024
DUPLICATE_WINDOW_S = 2
"""Seconds for which the server detects a repeated message id. Fences and look-ups detect repeated events at any time.
A longer window costs memory, and time after a kill: the server reads the events of the window before it answers (8 s of
13 over 10^6 fresh events)."""
_PENDING = b"\r\nNats-Num-Pending: "
"""Header of a message: how many messages of the answer follow it or do not fit."""
_EVERY = ">"
"""Filter that matches all subjects."""


class Stored(msgspec.Struct, frozen=True, gc=False):
    """One message of a stream."""

    position: int
    subject: str
    head: Annotated[bytes, doc("Header block as it was sent.")]
    data: bytes
    is_hollow: Annotated[bool, doc("Removed from its stream, and its data are in the archive only.")] = False
    past_id: Annotated[str | None, doc("If removed from its stream: the message id that it had there.")] = None

    @property
    def id(self) -> str:
        """Message id; empty if it has none."""
        return message_id(self.head) if self.past_id is None else self.past_id


class Stream:
    """See the module. replicated: the stream has more than one copy."""

    def __init__(self, connection: Connection, name: str, *, replicated: bool) -> None:
        self.connection, self.name, self.replicated = connection, name, replicated

    @property
    def run(self) -> str:
        """Run whose log it is."""
        return run_of_stream(self.name)

    async def refresh(self, deadline_s: float | None = None) -> None:
        """Reload state that other processes may change: none, unless events can be removed."""

    def has_left(self, position: int) -> bool:
        """Return whether the event at a position (0: none) is known to have been removed from the stream."""
        return False

    async def first(self) -> int:
        """Return the first position in the stream itself."""
        return 1

    async def to_expect(self, fences: dict[str, int]) -> dict[str, int]:
        """Return the last positions by filter as the server counts them. Raises NotTheLast if one is already wrong."""
        return fences

    async def whole(self, stored: list[Stored]) -> list[Stored]:
        """Return the messages with all their bytes, including archived ones."""
        return stored

    def incoming(self, subject: str) -> str:
        """Return the subject on which the stream accepts an event of `subject`."""
        return subject

    async def info(self, deadline_s: float | None = None, *, absent: ErrorCode | None = None) -> Any:
        """Return configuration and state. A replica that has just started may lag behind acked messages."""
        return await self.connection.api(f"STREAM.INFO.{self.name}", deadline_s=deadline_s, absent=absent)

    async def end(self, subject: str | None = None) -> int:
        """Return the last position, overall or under a filter; 0 if there is none."""
        if subject is None and not self.replicated:
            return int((await self.info())["state"]["last_seq"])
        last = await self.last(subject or _EVERY)
        return last.position if last else 0

    async def last(self, subject: str) -> Stored | None:
        """Return the last message under a filter, or None."""
        if self.replicated:
            return await self._of_the_leader({"last_by_subj": subject})
        messages = await self.connection.direct_get(self.name, {"last_by_subj": subject})
        return _stored(messages[0]) if messages else None

    async def last_of_each(self, subjects: Sequence[str]) -> list[Stored]:
        """Return the last message of each subject that has any; at most 1024 subjects."""
        if self.replicated:
            return [last for last in await asyncio.gather(*map(self.last, subjects)) if last]
        left, last = set(subjects), list[Stored]()
        while left and (page := await self.connection.direct_get(self.name, {"multi_last": sorted(left)})):
            last += map(_stored, page)
            left -= {stored.subject for stored in last}
            if _last(page[-1].head, _PENDING) == b"0":
                break
        return last

    async def subjects(self, pattern: str) -> list[str]:
        """Return the subjects that match a filter and have messages. The server names 100,000 in one answer.

        The server sorts the subjects for each answer, so a new subject may shift another into two answers.
        """
        subjects, offset = dict[str, None](), 0
        while True:
            body = {"subjects_filter": pattern, "offset": offset}
            info = await self.connection.api(f"STREAM.INFO.{self.name}", body)
            page = info["state"].get("subjects", ())
            subjects |= dict.fromkeys(page)
            offset += len(page)
            if not page or offset >= info.get("total", 0):
                return list(subjects)

    async def page(self, position: int, end: int, subject: str | None = None, *, limit: int = PAGE) -> list[Stored]:
        """Return messages from `position` on under a filter, at least one. end: a known match at or after `position`.

        Raises LogDamaged if there is none, LogUnavailable if no replica catches up in time.
        """
        retry = self.connection.retry()
        while True:
            if page := await self._ask_page(position, subject, limit):
                return page
            await self._not_there(position, end, retry)

    async def glance(self, position: int, subject: str | None) -> list[Stored]:
        """Return messages from `position` on under a filter: perhaps none, or not the last, if a replica lags."""
        return await self._ask_page(position, subject, PAGE)

    async def _ask_page(self, position: int, subject: str | None, limit: int) -> list[Stored]:
        body: dict[str, Any] = {"seq": position, "batch": limit, "max_bytes": PAGE_BYTES}
        if subject is not None:
            body["next_by_subj"] = subject
        return list(map(_stored, await self.connection.direct_get(self.name, body)))

    async def _not_there(self, position: int, end: int, retry: Retry) -> None:
        if not self.replicated:
            raise LogDamaged(f"stream {self.name} lacks position {position}, although it ends at {end}")
        await retry.pause(f"a replica of {self.name} has not reached position {position}")

    async def _of_the_leader(self, body: Mapping[str, Any]) -> Stored | None:
        answer = await self.connection.api(f"STREAM.MSG.GET.{self.name}", body, absent=ErrorCode.JSNoMessageFoundErr)
        if answer is None:
            return None
        message = answer["message"]
        head, data = base64.b64decode(message.get("hdrs", "")), base64.b64decode(message.get("data", ""))
        return Stored(int(message["seq"]), str(message["subject"]), head, data)


def _stored(message: Answer) -> Stored:
    head = message.head
    subject = subject_text(_last(head, b"\r\nNats-Subject: "))
    return Stored(int(_last(head, b"\r\nNats-Sequence: ")), subject, head, message.data)


def _last(head: bytes, name: bytes) -> bytes:
    """Return the last value of a header: the server appends its headers after the writer's."""
    begin = head.rindex(name) + len(name)
    return head[begin : head.index(b"\r\n", begin)]


class NotTheLast(Exception):
    """A fence has already failed, so the request need not be sent."""


async def widen_stream(stream: Stream, run: str) -> None:
    """Make a stream of an earlier version accept the event types added since."""
    config = (await stream.info())["config"]
    required, accepted = stream_subjects(run), config["subjects"]
    if missing := set(required) - set(accepted):
        subjects = [*required, *(subject for subject in accepted if subject not in required)]
        await stream.connection.api(f"STREAM.UPDATE.{stream.name}", config | {"subjects": subjects})
        logger.info("stream %s now accepts %s", stream.name, ", ".join(sorted(missing)))


def stream_config(run: str, replicas: int = 1) -> dict[str, Any]:
    """Return the configuration of a run's stream: nothing in it can be deleted or purged."""
    return {
        "name": stream_name(run),
        "subjects": stream_subjects(run),
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "max_consumers": -1,
        "max_msg_size": MAX_EVENT_BYTES + HEADER_BYTES,
        "num_replicas": replicas,
        "duplicate_window": int(DUPLICATE_WINDOW_S * 10**9),
        "deny_delete": True,
        "deny_purge": True,
        "allow_direct": True,
        "allow_atomic": True,
    }
