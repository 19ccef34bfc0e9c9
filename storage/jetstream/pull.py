"""`Pull`: messages of one JetStream consumer, on request, into a buffer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import deque
from typing import Any, NamedTuple

from storage.jetstream.client import Answer
from storage.jetstream.connection import Connection
from storage.jetstream.retry import Away

ENDED = ("Deleted", "Leadership", "Shutdown", "Reset")
"""Words in a status that says that the consumer itself has ended; any other status ends a request only."""
UNFILLED = "Nats-Pending-Messages"
"""Header of a status: how many of the messages that were asked for will not come."""
_GRACE_S = 2.0
"""Seconds after the end of a request in which its closing status must have come."""
_BEAT_S = 2.0
"""Seconds between signs of life that the consumer gives while it has nothing to deliver."""
_SILENCE_S = 5.0
"""Seconds without any, after which it is taken for dead: its node has gone, or another one leads it now."""


class Pulled(NamedTuple):
    """One message. number: its count in this consumer's deliveries, from 1. attempt: of this message, from 1. at: when
    it came, in seconds of the monotonic clock. reply: where its ack goes.
    """

    position: int
    number: int
    attempt: int
    at: float
    subject: str
    data: bytes
    reply: bytes


def pulled_of(subject: bytes, reply: bytes, data: bytes, at: float) -> Pulled:
    """Its figures stand in the reply subject:
    `$JS.ACK[.domain.account].stream.consumer.attempt.position.number.time.pending`."""
    tokens = reply.split(b".")
    attempt, position, number = tokens[4:7] if len(tokens) == 9 else tokens[6:9]
    return Pulled(int(position), int(number), int(attempt), at, subject.decode(), data, reply)


class Pull:
    """Requests to a consumer, and what they brought."""

    def __init__(self, connection: Connection, stream: str, consumer: str) -> None:
        self.buffer: deque[Pulled] = deque()
        self.gone = False
        self.breaks = 0
        self._connection, self._subject = connection, f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox, self._asked = connection.client.new_inbox(), 0
        self._changed = asyncio.Event()
        self._open, self._left, self._until = "", 0, 0.0
        self._beats, self._heard = False, 0.0
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Pull:
        await self._stack.enter_async_context(self._connection.receiving(self._inbox, self._receive))
        self._stack.enter_context(self._connection.calling_on_breaks(self._on_break))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def _on_break(self) -> None:
        """What was asked for is forgotten by the server, and what was under way is lost."""
        self.breaks += 1
        self._open = ""
        self._changed.set()

    def _receive(self, subject: bytes, reply: bytes, answer: Answer) -> None:
        self._heard = time.monotonic()
        if not answer.is_status:
            self.buffer.append(pulled_of(subject, reply, answer.data, self._heard))
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
        # A consumer with replicas sends a message only once they know of it, and so after the status of its request.
        owed = self._left - int(answer.headers.get(UNFILLED, self._left))
        if owed > 0:
            self._left = owed
        else:
            self._open = ""

    @property
    def idle(self) -> bool:
        """No request is open, as far as is known here."""
        return not self._open or self._left <= 0 or time.monotonic() > self._until

    async def ask(self, limit: int, *, expires_s: float | None = None, max_bytes: int | None = None) -> None:
        """Open a request; `expires_s` None: for what is there now. Raises Away."""
        self._asked += 1
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
        self._open, self._left = f"{self._inbox}.{self._asked}", limit
        self._until = time.monotonic() + (expires_s or 0.0) + _GRACE_S
        await self._connection.publish(self._subject, json.dumps(body).encode(), reply=self._open)

    async def wait(self, seconds: float) -> bool:
        """Until anything new happens; False where the time was over first, or where the consumer fell silent, which
        ends its request. Look at what there is before each call.
        """
        self._changed.clear()
        end = time.monotonic() + seconds
        while True:
            # At least a second: a loop that was held up has not yet seen what came meanwhile.
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
