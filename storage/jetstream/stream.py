"""`Stream`: what stands in one JetStream stream, asked so that the answer is not older than the question.

Direct Get is quick, but any replica answers it, and one that lags behind knows less than was acked already. So where a
stream has replicas, single look-ups go to its leader, and a page is believed to be empty only where nothing can be
there: every page is asked for up to a position that the leader has named.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from schemas.errors import LogDamaged
from storage.jetstream.api_errors import ApiError
from storage.jetstream.append import ID
from storage.jetstream.client import Answer
from storage.jetstream.connection import Connection
from storage.jetstream.retry import Away

PAGE = 1000
"""Messages in one Direct Get; the server allows 1024."""
PAGE_BYTES = 16 * 1024 * 1024
_NO_MESSAGE = 10037
_EVERY = ">"
"""The filter that all subjects pass."""


class Stored(NamedTuple):
    """One message of a stream. head: its header block, as it was sent."""

    position: int
    subject: str
    head: bytes
    data: bytes

    @property
    def id(self) -> str:
        """Its `Nats-Msg-Id`, empty where it has none."""
        return Answer(self.head, b"").headers.get(ID, "")


class Stream:
    """See the module. replicated: it has more than one copy."""

    def __init__(self, connection: Connection, name: str, *, replicated: bool) -> None:
        self.connection, self.name, self.replicated = connection, name, replicated

    async def info(self, deadline_s: float | None = None) -> Any:
        """What JetStream says of it. A replica that has just started answers too, before it knows what was acked."""
        return await self.connection.api(f"STREAM.INFO.{self.name}", deadline_s=deadline_s)

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
        found = await self.connection.direct_get(self.name, {"last_by_subj": subject})
        return _stored(found[0]) if found else None

    async def last_of_each(self, subjects: Sequence[str]) -> list[Stored]:
        """The last message of each of at most 1024 subjects that have any."""
        if self.replicated:
            return [found for found in await asyncio.gather(*map(self.last, subjects)) if found]
        left = set(subjects)
        found: list[Stored] = []
        while left:
            page = await self.connection.direct_get(self.name, {"multi_last": sorted(left)})
            if not page:
                break
            found += map(_stored, page)
            left -= {stored.subject for stored in found}
        return found

    async def page(self, position: int, end: int, subject: str | None = None, *, limit: int = PAGE) -> list[Stored]:
        """Messages from `position` on under a filter, at least one: `end`, not below, is known to be one of them.

        Raises LogDamaged where none is there, LogUnavailable where no replica catches up in time.
        """
        body: dict[str, Any] = {"seq": position, "batch": limit, "max_bytes": PAGE_BYTES}
        if subject is not None:
            body["next_by_subj"] = subject
        patience = self.connection.patience()
        while True:
            found = await self.connection.direct_get(self.name, body)
            if found:
                return [_stored(message) for message in found]
            if not self.replicated:
                raise LogDamaged(f"stream {self.name} has no position {position}, though {end} is its last")
            await patience.pause(f"the replica of {self.name} that was asked is behind position {position}")

    async def _of_the_leader(self, body: Mapping[str, Any]) -> Stored | None:
        question = json.dumps(body).encode()
        patience = self.connection.patience()
        while True:
            try:
                answer = await self.connection.request(f"$JS.API.STREAM.MSG.GET.{self.name}", question)
            except Away as error:
                await patience.pause(error)
            except ApiError as error:
                if error.code == _NO_MESSAGE:
                    return None
                raise
            else:
                return _told(answer["message"])


def _stored(message: Answer) -> Stored:
    head = message.head
    subject = _last(head, b"\r\nNats-Subject: ").decode()
    return Stored(int(_last(head, b"\r\nNats-Sequence: ")), subject, head, message.data)


def _last(head: bytes, name: bytes) -> bytes:
    """The value of a header. The server's own come last, after those of whoever wrote the message."""
    begin = head.rindex(name) + len(name)
    return head[begin : head.index(b"\r\n", begin)]


def _told(message: Mapping[str, Any]) -> Stored:
    head, data = base64.b64decode(message.get("hdrs", "")), base64.b64decode(message.get("data", ""))
    return Stored(int(message["seq"]), str(message["subject"]), head, data)
