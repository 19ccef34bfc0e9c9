"""`Stream`: one JetStream stream, how a run's is made, and look-ups in it that are never older than the question.

Direct Get is quick, but any replica answers it, and one that lags behind knows less than was acked already. So where a
stream has replicas, single look-ups go to its leader, and a page counts as empty only where nothing can be there: every
page is asked for up to a position that the leader has named.
"""

import asyncio
import base64
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from schemas.errors import LogDamaged
from schemas.subjects import run_of_stream, stream_name, stream_subjects
from storage.jetstream.answer import Answer, message_id, subject_text
from storage.jetstream.connection import Connection
from storage.jetstream.retry import Retry
from storage.log import HEADER_BYTES, MAX_EVENT_BYTES

logger = logging.getLogger(__name__)

PAGE = 1000
"""Messages in one Direct Get; the server allows 1024."""
PAGE_BYTES = 16 * 1024 * 1024
DUPLICATE_WINDOW_S = 2
"""Seconds for which the server itself knows an id again. It needs none of them: fences and look-ups know an event again
for ever. Longer costs memory, and time after a kill: the server reads the events of the whole window before it answers
(8 s of 13 over 10^6 fresh events)."""
_PENDING = b"\r\nNats-Num-Pending: "
"""Header of a message: how many more of the answer do not fit, or come after it."""
_EVERY = ">"
"""The filter that all subjects pass."""
_NO_MESSAGE = 10037
"""JetStream's error code."""


class Stored(msgspec.Struct, frozen=True, gc=False):
    """One message of a stream. head: its header block, as it was sent. Of one that has left its stream, past_id: the
    message id that it had there; is_hollow: its data are elsewhere.
    """

    position: int
    subject: str
    head: bytes
    data: bytes
    is_hollow: bool = False
    past_id: str | None = None

    @property
    def id(self) -> str:
        """Its message id, empty where it has none."""
        return message_id(self.head) if self.past_id is None else self.past_id


class Stream:
    """See the module. replicated: it has more than one copy."""

    def __init__(self, connection: Connection, name: str, *, replicated: bool) -> None:
        self.connection, self.name, self.replicated = connection, name, replicated

    @property
    def run(self) -> str:
        """The run that it is the log of."""
        return run_of_stream(self.name)

    async def refresh(self, deadline_s: float | None = None) -> None:
        """Learn anew what others may have changed: nothing, as long as nothing leaves the stream."""

    def has_left(self, position: int) -> bool:
        """Whether the event at a position, 0 for none, is known to be in the stream no more."""
        return False

    async def first(self) -> int:
        """The first position that is in the stream itself."""
        return 1

    async def to_expect(self, fences: dict[str, int]) -> dict[str, int]:
        """The last positions under filters as the server judges them. Raises NotTheLast where one is wrong already."""
        return fences

    async def whole(self, stored: list[Stored]) -> list[Stored]:
        """The same messages with all their bytes."""
        return stored

    def incoming(self, subject: str) -> str:
        """The subject on which it takes in what it stores on a subject of the run."""
        return subject

    async def info(self, deadline_s: float | None = None, *, absent: int = 0) -> Any:
        """Its configuration and state. A replica that has just started may lag behind what was acked."""
        return await self.connection.api(f"STREAM.INFO.{self.name}", deadline_s=deadline_s, absent=absent)

    async def end(self, subject: str | None = None) -> int:
        """The last position, of all or under a filter; 0 where there is none."""
        if subject is None and not self.replicated:
            return int((await self.info())["state"]["last_seq"])
        last = await self.last(subject or _EVERY)
        return last.position if last else 0

    async def last(self, subject: str) -> Stored | None:
        """The last message under a filter."""
        if self.replicated:
            return await self._of_the_leader({"last_by_subj": subject})
        messages = await self.connection.direct_get(self.name, {"last_by_subj": subject})
        return _stored(messages[0]) if messages else None

    async def last_of_each(self, subjects: Sequence[str]) -> list[Stored]:
        """The last message of each of at most 1024 subjects that have any."""
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
        """All that match a filter and have a message, each once: the server names 100,000 in one answer.

        It sorts them anew for each, so that one that is new meanwhile moves another into the next answer, once more.
        """
        found, offset = dict[str, None](), 0
        while True:
            question = {"subjects_filter": pattern, "offset": offset}
            info = await self.connection.api(f"STREAM.INFO.{self.name}", question)
            page = info["state"].get("subjects", ())
            found |= dict.fromkeys(page)
            offset += len(page)
            if not page or offset >= info.get("total", 0):
                return list(found)

    async def page(self, position: int, end: int, subject: str | None = None, *, limit: int = PAGE) -> list[Stored]:
        """Messages from `position` on under a filter, at least one: `end`, not below, is known to be one of them.

        Raises LogDamaged where none is there, LogUnavailable where no replica catches up in time.
        """
        retry = self.connection.retry()
        while True:
            if page := await self._ask_page(position, subject, limit):
                return page
            await self._not_there(position, end, retry)

    async def _ask_page(self, position: int, subject: str | None, limit: int) -> list[Stored]:
        body: dict[str, Any] = {"seq": position, "batch": limit, "max_bytes": PAGE_BYTES}
        if subject is not None:
            body["next_by_subj"] = subject
        return list(map(_stored, await self.connection.direct_get(self.name, body)))

    async def _not_there(self, position: int, end: int, retry: Retry) -> None:
        if not self.replicated:
            raise LogDamaged(f"stream {self.name} has no position {position}, though {end} is its last")
        await retry.pause(f"the replica of {self.name} that was asked is behind position {position}")

    async def _of_the_leader(self, body: Mapping[str, Any]) -> Stored | None:
        answer = await self.connection.api(f"STREAM.MSG.GET.{self.name}", body, absent=_NO_MESSAGE)
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
    """The value of a header. The server's own come last, after those of whoever wrote the message."""
    begin = head.rindex(name) + len(name)
    return head[begin : head.index(b"\r\n", begin)]


class NotTheLast(Exception):
    """A fence that has lost already: the server need not be asked."""


async def widen_stream(stream: Stream, run: str) -> None:
    """Let a stream that an earlier version has made take the events that are new since."""
    config = (await stream.info())["config"]
    wanted, taken = stream_subjects(run), config["subjects"]
    if missing := set(wanted) - set(taken):
        subjects = [*wanted, *(subject for subject in taken if subject not in wanted)]
        await stream.connection.api(f"STREAM.UPDATE.{stream.name}", config | {"subjects": subjects})
        logger.info("stream %s takes %s now", stream.name, ", ".join(sorted(missing)))


def stream_config(run: str, replicas: int = 1) -> dict[str, Any]:
    """How the stream of a run is made. Nothing in it can be deleted or purged, for ever."""
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
