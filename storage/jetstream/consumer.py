"""`JetStreamConsumer`: a taker of a durable pull consumer, which is one queue for all takers of its name.

The server delivers each event to one taker. Takers renew their leases in roll calls, with one message for all events
that a taker holds (storage/jetstream/roll_call.py).
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import Any

from schemas.errors import SchemaError, StorageError
from schemas.subjects import check_token
from storage.jetstream.connection import Connection
from storage.jetstream.error_codes import ErrorCode
from storage.jetstream.pull import Pull, Pulled
from storage.jetstream.read import judged
from storage.jetstream.retry import Away
from storage.jetstream.roll_call import Held, RollCall
from storage.log import Delivery, Recorded

MAX_TAKEN = 65536
"""Most events of one queue in work at once, over all takers."""
SERVER_LEASE_S = 600.0
"""The server's own lease. It redelivers events that no roll call covers; a taker renews it for long work."""
_REQUEST_S = 20.0
_TAKE_BYTES = 32 * 1024 * 1024


class JetStreamDelivery:
    """One event delivered to one taker. taken: everything in work at the taker."""

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
        """Send an ack without waiting. If it is lost, the event is redelivered after the server's lease."""
        with contextlib.suppress(Away):
            await self._connection.publish(self._pulled.reply.decode(), word)


class _Taken:
    """Deliveries in work at one taker, and the positions that it has released since the last roll call."""

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
        """Release expired deliveries, and return the positions of the others."""
        now = time.monotonic()
        for delivery in [delivery for delivery in self.deliveries if delivery.until <= now]:
            self.let_go(delivery)
        while self._done and now - self._done[0][0] > self.lease_s:
            self._done.popleft()
        return [delivery.recorded.position for delivery in self.deliveries]

    def let_go_of_done(self) -> None:
        """Report recent deliveries as released: their acks may be lost. The server ignores those that it has acked."""
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
        """Join the queue, and create it if needed. Raises AccessDenied if these credentials may not join roll calls."""
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
        # An equal queue is not created again: in a cluster even that interrupts its takers.
        info = await _info(connection, stream, name)
        if info is None or any(info["config"].get(key) != value for key, value in config.items()):
            await connection.api(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})
        pull = await Pull(connection, stream, name).__aenter__()
        consumer = cls(connection, stream, name, subject, pull, lease_s)
        try:
            await consumer._roll_call.__aenter__()
        except BaseException:  # a cancellation too must not leave the pull open
            await pull.__aexit__()
            raise
        return consumer

    def _look(self, broke: bool) -> Held:
        """Return, for a roll call, the events in work and those that were pulled and not taken."""
        held, now = self._taken.held(), time.monotonic()
        if broke:
            self._taken.let_go_of_done()
        buffer = self._pull.buffer
        while buffer and now - buffer[0].at >= self._taken.lease_s:
            self._taken.loose.append(buffer.popleft().position)
        held += [pulled.position for pulled in buffer]
        loose, self._taken.loose = self._taken.loose, []
        return Held(held, loose)

    async def take(self, limit: int, wait_s: float) -> list[Delivery]:
        """See `Consumer.take`; returns as soon as there is one delivery.

        Raises LogUnavailable if NATS stays away, AccessDenied if the server refuses roll calls, SchemaError with the
        position of an unreadable event.
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
        """Pull at least one message into the buffer if one arrives before `end`: the available ones, or the next."""
        pull = self._pull
        if pull.gone:
            pull.gone = False
            raise Away("the consumer does not exist yet")
        if not pull.buffer and pull.idle:
            await self._ask_now(limit)
        if pull.buffer:
            return
        left = end - time.monotonic()
        if left <= 0:
            return
        if pull.idle:
            await pull.ask(1, expires_s=min(max(left, 0.001), _REQUEST_S))
        await pull.wait(min(left, _REQUEST_S + 1.0))  # returns at the first message

    async def _ask_now(self, limit: int) -> None:
        pull = self._pull
        await pull.ask(limit, max_bytes=_TAKE_BYTES)
        while not pull.idle and not pull.gone:
            if not await pull.wait(1.0):
                return

    async def _from_buffer(self, limit: int) -> list[Delivery]:
        """Return deliveries of events from the buffer, and ack foreign records."""
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
                        self._taken.loose.append(pulled.position)  # it is redelivered
            buffer.popleft()
        return taken

    async def close(self) -> None:
        """Stop taking, and return pulled events that were not taken to the queue."""
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
    """Return the server's record of a consumer, or None if it does not exist."""
    return await connection.api(f"CONSUMER.INFO.{stream}.{name}", absent=ErrorCode.JSConsumerNotFoundErr)
