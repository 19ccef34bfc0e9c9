"""`JetStreamConsumer`: a taker of a durable pull consumer, one queue for all takers of its name.

The server hands each event to one taker. Who still works on what is said in roll calls, one message of a taker for all
that it holds, and not by a message for each event (storage/jetstream/roll_call.py).
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import Any

from schemas.errors import SchemaError, StorageError
from schemas.subjects import check_token
from storage.jetstream.connection import Connection
from storage.jetstream.pull import Pull, Pulled
from storage.jetstream.read import judged
from storage.jetstream.retry import Away
from storage.jetstream.roll_call import Held, RollCall
from storage.log import Delivery, Recorded

MAX_TAKEN = 65536
"""Events of one queue that may be in work at once, over all takers."""
SERVER_LEASE_S = 600.0
"""The server's own, renewed for each event that is in work for so long: whatever roll calls do not see comes again."""
_REQUEST_S = 20.0
_TAKE_BYTES = 32 * 1024 * 1024
_NO_CONSUMER = 10014


class JetStreamDelivery:
    """One event handed to one taker. taken: of its taker, all that it works on."""

    def __init__(self, connection: Connection, pulled: Pulled, recorded: Recorded, taken: _Taken) -> None:
        self._connection, self._pulled, self._taken = connection, pulled, taken
        self.recorded, self.attempt = recorded, pulled.attempt
        self.until = pulled.at + taken.lease_s
        self._server_renewed = pulled.at
        taken.deliveries.add(self)

    async def working(self) -> None:
        now = time.monotonic()
        if now >= self.until:
            return
        self.until = now + self._taken.lease_s
        if now > self._server_renewed + SERVER_LEASE_S / 3:
            self._server_renewed = now
            await self._reply(b"+WPI")

    async def done(self) -> None:
        self._taken.finish(self)
        await self._reply(b"+ACK")

    async def release(self) -> None:
        if time.monotonic() < self.until:
            self.until = 0.0
            self._taken.let_go(self)
            await self._reply(b"-NAK")

    async def _reply(self, word: bytes) -> None:
        """Not waited for: where it is lost, the event comes again after the server's lease."""
        with contextlib.suppress(Away):
            await self._connection.publish(self._pulled.reply.decode(), word)


class _Taken:
    """What one taker works on, and what it has let go of since it was asked. Positions of the log."""

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self.deliveries: set[JetStreamDelivery] = set()
        self.loose: list[int] = []
        self._done: deque[tuple[float, int]] = deque()

    def finish(self, delivery: JetStreamDelivery) -> None:
        self.deliveries.discard(delivery)
        self._done.append((time.monotonic(), delivery.recorded.position))

    def let_go(self, delivery: JetStreamDelivery) -> None:
        self.deliveries.discard(delivery)
        self.loose.append(delivery.recorded.position)

    def held(self) -> list[int]:
        """Those whose lease is over are let go of."""
        now = time.monotonic()
        for delivery in [one for one in self.deliveries if one.until <= now]:
            self.let_go(delivery)
        while self._done and now - self._done[0][0] > self.lease_s:
            self._done.popleft()
        return [delivery.recorded.position for delivery in self.deliveries]

    def let_go_of_done(self) -> None:
        """Acks may be lost with a connection: the server passes over those that were not."""
        self.loose += [position for _, position in self._done]


class JetStreamConsumer:
    """A taker of a named queue."""

    def __init__(
        self, connection: Connection, stream: str, name: str, subject: str, pull: Pull, lease_s: float
    ) -> None:
        self._connection, self._stream, self._pull = connection, stream, pull
        self._taken, self._closed = _Taken(lease_s), False
        self._roll_call = RollCall(connection, stream, name, subject, lease_s, self._look)

    @classmethod
    async def open(
        cls, connection: Connection, stream: str, name: str, subject: str, lease_s: float, start: int = 1
    ) -> JetStreamConsumer:
        """Make the queue where there is none. Raises AccessDenied where these credentials may not hear its takers."""
        config: dict[str, Any] = {
            "durable_name": check_token(name, "consumer name"),
            "name": name,
            "filter_subject": subject,
            "ack_policy": "explicit",
            "ack_wait": int(SERVER_LEASE_S * 1e9),
            "max_deliver": -1,
            "max_ack_pending": MAX_TAKEN,
            "deliver_policy": "by_start_sequence" if start > 1 else "all",
        }
        if start > 1:
            config["opt_start_seq"] = start
        # Not made anew where it is as wanted: in a cluster even that interrupts its takers.
        info = await _info(connection, stream, name)
        if info is None or any(info["config"].get(key) != value for key, value in config.items()):
            await connection.api(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})
        pull = await Pull(connection, stream, name).__aenter__()
        consumer = cls(connection, stream, name, subject, pull, lease_s)
        try:
            await consumer._roll_call.__aenter__()
        except BaseException:
            await pull.__aexit__()
            raise
        return consumer

    def _look(self, broke: bool) -> Held:
        """For a roll call: what is in work, and what was pulled and not taken yet."""
        held, now = self._taken.held(), time.monotonic()
        if broke:
            self._taken.let_go_of_done()
        buffer = self._pull.buffer
        while buffer and now - buffer[0].at >= self._taken.lease_s:
            self._taken.loose.append(buffer.popleft().position)
        held += [one.position for one in buffer]
        loose, self._taken.loose = self._taken.loose, []
        return Held(held, loose)

    async def take(self, limit: int, wait_s: float) -> list[Delivery]:
        """Up to `limit` deliveries as soon as there is one; an empty list after `wait_s` without any.

        Raises LogUnavailable where NATS stays away, AccessDenied where nobody hears its roll calls, SchemaError
        naming the position of an event that cannot be read.
        """
        end = time.monotonic() + wait_s
        retry = self._connection.retry()
        while not self._closed:
            self._roll_call.check()
            try:
                await self._fill(limit, end)
            except Away as error:
                if time.monotonic() >= end and retry.left > 0:
                    return []
                await retry.pause(error)
                continue
            taken = await self._from_buffer(limit)
            if taken or time.monotonic() >= end:
                return taken
        return []

    async def _fill(self, limit: int, end: float) -> None:
        """At least one message into the buffer, if one comes before `end`: first those there now, then the next."""
        pull = self._pull
        if pull.gone:
            pull.gone = False
            raise Away("the consumer is not there yet")
        if not pull.buffer and pull.idle:
            await self._ask_now(limit)
        if pull.buffer:
            return
        left = end - time.monotonic()
        if left <= 0:
            return
        if pull.idle:
            await pull.ask(1, expires_s=min(max(left, 0.001), _REQUEST_S))
        await pull.wait(min(left, _REQUEST_S + 1.0))  # one that has come is not kept waiting for others

    async def _ask_now(self, limit: int) -> None:
        pull = self._pull
        await pull.ask(limit, max_bytes=_TAKE_BYTES)
        while not pull.idle and not pull.gone:
            if not await pull.wait(1.0):
                return

    async def _from_buffer(self, limit: int) -> list[Delivery]:
        """What is an event; a foreign record is done with as it comes."""
        taken: list[Delivery] = []
        buffer = self._pull.buffer
        while buffer and len(taken) < limit:
            pulled = buffer[0]
            if time.monotonic() - pulled.at >= self._taken.lease_s:
                self._taken.loose.append(pulled.position)
            else:
                try:
                    record = judged(self._stream, pulled)
                except SchemaError:
                    if taken:
                        break
                    self._taken.loose.append(buffer.popleft().position)
                    raise
                if isinstance(record, Recorded):
                    taken.append(JetStreamDelivery(self._connection, pulled, record, self._taken))
                else:
                    try:
                        await self._connection.publish(pulled.reply.decode(), b"+ACK")
                    except Away:
                        self._taken.loose.append(pulled.position)  # it comes again
            buffer.popleft()
        return taken

    async def close(self) -> None:
        """Stop taking. What was pulled but not yet taken goes back at once."""
        self._closed = True
        await self._pull.__aexit__()
        for pulled in self._pull.buffer:
            self._taken.loose.append(pulled.position)
            with contextlib.suppress(StorageError):
                await self._connection.publish(pulled.reply.decode(), b"-NAK")
        self._pull.buffer.clear()
        await self._roll_call.__aexit__()


async def done_up_to(connection: Connection, stream: str, name: str) -> int:
    """See `EventLog.done_up_to`."""
    info = await _info(connection, stream, name)
    return int(info["ack_floor"]["stream_seq"]) if info else 0


async def _info(connection: Connection, stream: str, name: str) -> Any:
    """The server's record of a consumer; None where there is none."""
    return await connection.api(f"CONSUMER.INFO.{stream}.{name}", absent=_NO_CONSUMER)
