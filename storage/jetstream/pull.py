"""Pull messages from a JetStream consumer: `Pull` into a buffer, `read_bulk` for a long part of a stream.

`ephemeral` creates a consumer for one reader. `read_bulk` pulls thousands of messages at a time, which costs the server
a third of Direct Get. It raises `Away` for every problem, and the reader continues with pages.
"""

import asyncio
import contextlib
import json
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any, NamedTuple, Self

from schemas.doc import doc
from schemas.errors import StorageError
from storage.jetstream.answer import Answer, OnRow, message_id, subject_text
from storage.jetstream.connection import QUIET_S, Connection
from storage.jetstream.retry import Away
from storage.jetstream.stream import PAGE_BYTES, Stored, Stream
from storage.log import Subjects

BULK_FROM = 5_000
"""Fewest messages for which a bulk read creates a consumer."""
BULK = 2_000
"""Messages in one pull of a bulk read; two pulls are open at a time."""
_BULK_EXPIRES_S = 30.0
_FILLED = "Batch Completed"
_LONG = 128
"""Bytes from which a subject needs `subject_text`, which cuts it."""

ENDED = ("Deleted", "Leadership", "Shutdown", "Reset")
"""Words in a status which means that the consumer has ended; any other status ends a request only."""
UNFILLED = "Nats-Pending-Messages"
"""Header of a status: number of requested messages that will not arrive."""
_GRACE_S = 2.0
"""Seconds after the end of a request within which its closing status must arrive."""
_BEAT_S = 2.0
"""Seconds between heartbeats of a consumer that has nothing to deliver."""
_SILENCE_S = 5.0
"""Seconds without heartbeat or message after which the consumer counts as dead: its node is gone or not its leader."""


class Pulled(NamedTuple):
    """One pulled message."""

    position: Annotated[int, doc("Log position.")]
    number: Annotated[int, doc("Number of the delivery of this consumer, from 1.")]
    attempt: Annotated[int, doc("Number of the delivery of this message, from 1.")]
    at: Annotated[float, doc("Arrival, seconds of the monotonic clock.")]
    subject: str
    data: bytes
    reply: Annotated[bytes, doc("Subject for its ack.")]
    id: Annotated[str, doc("Its `Nats-Msg-Id`.")] = ""


def pulled_of(subject: bytes, reply: bytes, answer: Answer, at: float) -> Pulled:
    """Return a message, with the numbers in its reply subject."""
    attempt, position, number = map(int, _ack_tokens(reply))
    return Pulled(position, number, attempt, at, subject_text(subject), answer.data, reply, message_id(answer.head))


def _ack_tokens(reply: bytes) -> list[bytes]:
    """Return [attempt, position, number] of a reply subject:
    `$JS.ACK[.domain.account].stream.consumer.attempt.position.number.time.pending`.
    """
    tokens = reply.split(b".")
    return tokens[4:7] if len(tokens) == 9 else tokens[6:9]


def _before_position(reply: bytes) -> bytes:
    """Return the part of such a subject before the position: equal for all first deliveries of a consumer."""
    tokens = reply.split(b".")
    return b".".join([*tokens[: 5 if len(tokens) == 9 else 7], b""])


class _Requests:
    """Requests to one consumer. Within the context, `_receive` gets its answers."""

    _receive_row: OnRow | None = None

    def __init__(self, connection: Connection, stream: str, consumer: str) -> None:
        self._connection, self._subject = connection, f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox, self._changed = connection.client.new_inbox(), asyncio.Event()
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        receiving = self._connection.receiving(self._inbox, self._receive, self._on_break, self._receive_row)
        await self._stack.enter_async_context(receiving)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def _receive(self, subject: bytes, reply: bytes, answer: Answer) -> None:
        raise NotImplementedError

    def _on_break(self) -> None:
        raise NotImplementedError


class Pull(_Requests):
    """Requests to a consumer, and a buffer of its messages."""

    def __init__(self, connection: Connection, stream: str, consumer: str) -> None:
        super().__init__(connection, stream, consumer)
        self.buffer: deque[Pulled] = deque()
        self.gone, self.breaks = False, 0
        self._request_count, self._open, self._left, self._until = 0, "", 0, 0.0
        self._beats, self._heard = False, 0.0

    def _on_break(self) -> None:
        """Note that the server has dropped the request, and that messages on the way are lost."""
        self.breaks += 1
        self._open = ""
        self._changed.set()

    def _receive(self, subject: bytes, reply: bytes, answer: Answer) -> None:
        self._heard = time.monotonic()
        if reply:  # a status has none; a message's headers may look like a status
            self.buffer.append(pulled_of(subject, reply, answer, self._heard))
            self._left -= 1
        elif answer.status == "100":
            return
        else:
            self._end_request(subject.decode(), answer)
        self._changed.set()

    def _end_request(self, subject: str, answer: Answer) -> None:
        if answer.status == "503" or any(word in answer.description for word in ENDED):
            self.gone = True
        if subject != self._open:
            return
        # A consumer with replicas sends a message after they have it, which may be after the status of its request.
        owed = self._left - int(answer.headers.get(UNFILLED, self._left))
        if owed > 0:
            self._left = owed
        else:
            self._open = ""

    @property
    def idle(self) -> bool:
        """Whether no request is known to be open."""
        return not self._open or self._left <= 0 or time.monotonic() > self._until

    async def ask(self, limit: int, *, expires_s: float | None = None, max_bytes: int | None = None) -> None:
        """Open a request. expires_s: seconds to wait for messages; None: only available ones. Raises Away."""
        self._request_count += 1
        body: dict[str, Any] = {"batch": limit}
        if expires_s is None:
            body["no_wait"] = True
        else:
            body["expires"] = int(expires_s * 1e9)
        if max_bytes is not None:
            body["max_bytes"] = max_bytes
        self._beats, self._heard = (expires_s or 0.0) > 2 * _BEAT_S, time.monotonic()
        if self._beats:
            body["idle_heartbeat"] = int(_BEAT_S * 1e9)
        if not self._connection.client.is_connected:
            raise Away("no connection")
        self._open, self._left = f"{self._inbox}.{self._request_count}", limit
        self._until = time.monotonic() + (expires_s or 0.0) + _GRACE_S
        await self._connection.publish(self._subject, json.dumps(body).encode(), reply=self._open)

    async def wait(self, seconds: float) -> bool:
        """Wait for news. Return False after `seconds`, or if the consumer fell silent, which ends its request.

        Check the buffer before each call.
        """
        self._changed.clear()
        end = time.monotonic() + seconds
        while True:
            # At least a second: a busy event loop has not yet seen what has arrived.
            silent = max(self._heard + _SILENCE_S, time.monotonic() + 1.0) if self._open and self._beats else end
            try:
                async with asyncio.timeout_at(min(end, silent)):  # wait_for may lose a cancellation in Python 3.11
                    await self._changed.wait()
                return True
            except TimeoutError:
                if time.monotonic() >= end:
                    return False
            if time.monotonic() >= self._heard + _SILENCE_S:
                self._open = ""
                return False


@contextlib.asynccontextmanager
async def ephemeral(
    connection: Connection, stream: str, position: int, subject: Subjects, idle_s: float, *, only_heads: bool = False
) -> AsyncIterator[str]:
    """Create a consumer that starts at `position`, and delete it on exit. The value is its name.

    idle_s: seconds without a pull after which the server deletes it. only_heads: messages have no data.

    The request is not repeated: the server may have chosen a lost node for the name, and another name gets another
    node. Raises Away, and StorageError if the server refuses.
    """
    name = secrets.token_hex(11)
    config: dict[str, Any] = {
        "name": name,
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": position,
        "ack_policy": "none",
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": int(idle_s * 1e9),
        "headers_only": only_heads,
    }
    if subject is not None:
        config["filter_subjects"] = [subject] if isinstance(subject, str) else subject
    body = json.dumps({"stream_name": stream, "config": config}).encode()
    try:  # around the request too: a cancellation during it would leave the consumer behind
        await connection.request(f"$JS.API.CONSUMER.CREATE.{stream}.{name}", body)
        yield name
    finally:
        with contextlib.suppress(StorageError):
            await connection.send_to_api(f"CONSUMER.DELETE.{stream}.{name}")


async def read_bulk(stream: Stream, position: int, end: int) -> AsyncGenerator[list[Stored], None]:
    """Yield everything from `position` to `end` in order. Raises Away if something does not arrive."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            name = await stack.enter_async_context(
                ephemeral(stream.connection, stream.name, position, None, 2 * _BULK_EXPIRES_S)
            )
        except StorageError as error:
            raise Away(f"no consumer to read with: {error}") from error
        bulk = await stack.enter_async_context(_Bulk(stream, name, position, end))
        while not bulk.done:
            yield await bulk.take()


class _Bulk(_Requests):
    """The pulls of one bulk read."""

    def __init__(self, stream: Stream, consumer: str, position: int, end: int) -> None:
        super().__init__(stream.connection, stream.name, consumer)
        self._next, self._end, self._requested = position, end, position - 1
        self._received: list[Stored] = []
        self._failure, self._acks = "", b"?"

    def _on_break(self) -> None:
        self._end_with("the connection broke")

    @property
    def done(self) -> bool:
        return self._next > self._end and not self._received

    async def take(self) -> list[Stored]:
        """Return the messages since the last call, at least one. Raises Away."""
        while True:
            self._changed.clear()
            await self._ask()
            if self._received:
                break
            if self._failure:
                raise Away(self._failure)
            try:
                async with asyncio.timeout(QUIET_S):
                    await self._changed.wait()
            except TimeoutError:
                raise Away(f"the consumer sent nothing for {QUIET_S:.0f} s") from None
        received, self._received = self._received, []
        return received

    async def _ask(self) -> None:
        while self._requested < self._end and self._requested - self._next < BULK:
            batch = min(BULK, self._end - self._requested)
            body = {"batch": batch, "expires": int(_BULK_EXPIRES_S * 1e9), "max_bytes": PAGE_BYTES}
            await self._connection.publish(self._subject, json.dumps(body).encode(), reply=f"{self._inbox}.0")
            self._requested += batch

    def _receive(self, subject: bytes, reply: bytes, answer: Answer) -> None:
        if not reply:
            self._status(answer)
            return
        position = self._next
        # All replies are equal except for their numbers, so only the first is parsed, and the others are compared.
        if not reply.startswith(b"%b%d." % (self._acks, position)):
            position = int(_ack_tokens(reply)[1])
            self._acks = _before_position(reply)
        if position != self._next:
            self._end_with(f"position {position} arrived instead of {self._next}")
        elif not self._failure:
            if not self._received:  # otherwise no task waits
                self._changed.set()
            text = subject.decode("utf-8", "backslashreplace") if len(subject) < _LONG else subject_text(subject)
            self._received.append(Stored(position, text, answer.head, answer.data))
            self._next += 1

    def _receive_row(self, buf: bytes, begin: int, sid: bytes) -> int:
        """Take the messages that follow one in the buffer in one loop. Anything unexpected is left to `_receive`."""
        received, position, acks, own = self._received, self._next, self._acks.decode(), sid.decode()
        if self._failure or not received:
            return begin
        find, append, length = buf.find, received.append, len(buf)
        while (line := find(b"\n", begin)) >= 0:
            try:
                words = buf[begin:line].decode().split(" ")
            except UnicodeDecodeError:
                break
            if len(words) != 6:
                break
            op, subject, to, reply, in_head, in_all = words
            mark = f"{acks}{position}."
            if op != "HMSG" or to != own or reply[: len(mark)] != mark or len(subject) >= _LONG:
                break
            head = line + 1
            body, end = head + int(in_head), head + int(in_all)
            if length < end + 2:
                break
            append(Stored(position, subject, buf[head:body], buf[body:end]))
            position, begin = position + 1, end + 2
        self._next = position
        return begin

    def _status(self, answer: Answer) -> None:
        """Handle the end of a request: it is filled, or has reached its bytes."""
        unfilled = answer.headers.get(UNFILLED, "0" if answer.description == _FILLED else "")
        if answer.status != "409" or not unfilled or any(word in answer.description for word in ENDED):
            self._end_with(f"the consumer answered {answer.status} {answer.description}")
            return
        self._requested -= int(unfilled)
        self._changed.set()

    def _end_with(self, failure: str) -> None:
        self._failure = self._failure or failure
        self._changed.set()
