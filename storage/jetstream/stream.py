"""`Stream`: one JetStream stream, how a run's is made, and look-ups in it that are never older than the question.

Direct Get is quick, but any replica answers it, and one that lags behind knows less than was acked already. So where a
stream has replicas, single look-ups go to its leader, and a page counts as empty only where nothing can be there: every
page is asked for up to a position that the leader has named.
"""

import asyncio
import base64
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from schemas.errors import ImpossibleCombination, LogDamaged, LogUnavailable, RunNotFound, StorageError
from schemas.subjects import run_of_stream, stream_name, stream_subjects
from storage.jetstream.answer import Answer, message_id, subject_text
from storage.jetstream.connection import Connection
from storage.jetstream.retry import ApiError
from storage.log import HEADER_BYTES, MAX_EVENT_BYTES

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
_NO_MESSAGE, _NO_STREAM, _OTHER_STREAM, _NOT_ENABLED, _NO_CLUSTER = 10037, 10059, 10058, {10039, 10076}, 10074
"""JetStream's error codes."""


class Stored(NamedTuple):
    """One message of a stream. head: its header block, as it was sent."""

    position: int
    subject: str
    head: bytes
    data: bytes

    @property
    def id(self) -> str:
        """Its `Nats-Msg-Id`, empty where it has none."""
        return message_id(self.head)


class Stream:
    """See the module. replicated: it has more than one copy."""

    def __init__(self, connection: Connection, name: str, *, replicated: bool) -> None:
        self.connection, self.name, self.replicated = connection, name, replicated

    @property
    def run(self) -> str:
        """The run that it is the log of."""
        return run_of_stream(self.name)

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
        body: dict[str, Any] = {"seq": position, "batch": limit, "max_bytes": PAGE_BYTES}
        if subject is not None:
            body["next_by_subj"] = subject
        retry = self.connection.retry()
        while True:
            messages = await self.connection.direct_get(self.name, body)
            if messages:
                return list(map(_stored, messages))
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


async def ensure_stream(stream: Stream, run: str, *, create: bool, replicas: int, deadline_s: float) -> None:
    """Make the stream of `run` where there is none, with that many copies; sets `stream.replicated`.

    Raises RunNotFound (`create=False`), StorageError (a stream that is no run's log), LogUnavailable (no JetStream, no
    answer), ImpossibleCombination (copies, and no cluster).
    """
    url = stream.connection.url
    try:
        # Not made anew where it is there: in a cluster even that moves leaders about.
        info = await stream.info(deadline_s, absent=_NO_STREAM)
        if info is None and create:
            wanted, create_stream = stream_config(run, replicas), f"STREAM.CREATE.{stream.name}"
            info = await stream.connection.api(create_stream, wanted, deadline_s=deadline_s, absent=_OTHER_STREAM)
            info = info or await stream.info(deadline_s)  # somebody else made it at the same time
    except ApiError as error:
        if error.code in _NOT_ENABLED:
            raise LogUnavailable(f"NATS at {url} runs without JetStream: start it with -js") from error
        if error.code == _NO_CLUSTER:
            raise ImpossibleCombination(
                f"--nats-replicas {replicas} needs a cluster, and NATS at {url} is a single server"
            ) from error
        raise
    if info is None:
        raise RunNotFound(f"NATS at {url} has no log of run {run!r}: check the run's name, or --nats-url")
    if create:
        _check(run, info["config"])
    stream.replicated = int(info["config"]["num_replicas"]) > 1


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


def _check(run: str, actual: Mapping[str, Any]) -> None:
    """A stream of the same name that is not ours. What costs no promise may differ, as replicas."""
    for key, wanted in stream_config(run).items():
        if (isinstance(wanted, str | list) or wanted is True) and actual.get(key) != wanted:
            raise StorageError(
                f"NATS has a stream {stream_name(run)} that is not a run's log ({key} is {actual.get(key)!r}, "
                f"not {wanted!r}): choose another run name or server"
            )
