"""`RollCall`: renew the leases of a queue with one message per taker instead of one per event in work.

A call is a NATS message that is not stored and names all that a taker holds. A few takers of the queue receive it
(storage/jetstream/listeners.py) and know who holds what (storage/jetstream/leases.py). The server redelivers what the
keeper returns to the queue; the server's own lease of ten minutes covers what no roll call has seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from schemas import subjects
from schemas.errors import LogUnavailable, StorageError
from schemas.subjects import run_of_stream
from storage.cancellation import end_all
from storage.jetstream.answer import Answer
from storage.jetstream.call import Call
from storage.jetstream.connection import Connection
from storage.jetstream.leases import Leases
from storage.jetstream.listeners import Listeners
from storage.jetstream.own_time import CALLS
from storage.jetstream.pull import Pull, ephemeral
from storage.jetstream.retry import Away

LOOK_S = 10.0
"""Seconds for one look-up of deliveries."""
_AT_ONCE = 2_000
"""Positions that are looked up or returned before other tasks may run."""
_log = logging.getLogger(__name__)


class Held(NamedTuple):
    """Positions that a taker holds, and those that it has released."""

    held: Iterable[int]
    loose: Iterable[int]


class RollCall:
    """One taker's roll calls. look: returns what it holds; its argument: the connection broke since the last call."""

    def __init__(
        self,
        connection: Connection,
        stream: str,
        queue: str,
        subject: str,
        lease_s: float,
        look: Callable[[bool], Held],
    ) -> None:
        self._connection, self._stream, self._queue, self._subject = connection, stream, queue, subject
        self._look, self._lease_s = look, lease_s
        self._me, self._every_s = secrets.token_hex(8), lease_s / CALLS
        self._leases, self._listeners = Leases(self._me, lease_s), Listeners(self._me, lease_s)
        self._calls = subjects.RollCallSubjects.of(run_of_stream(stream), queue)
        self._loose: set[int] = set()
        self._broke = False
        self._due = asyncio.Event()
        self._delivered = 0
        self._stack, self._listening = contextlib.AsyncExitStack(), contextlib.AsyncExitStack()

    async def __aenter__(self) -> RollCall:
        """Raises AccessDenied if these credentials may not receive the calls."""
        try:
            await self._receive(self._calls.of_listeners, self._stack, self._on_break)
            await self._receive(self._calls.of_taker(self._me), self._stack)
        except BaseException:  # a cancellation too must not leave the subscription open
            await self._stack.aclose()
            raise
        self._tasks = [asyncio.create_task(part(), name=part.__name__) for part in (self._call_all, self._keep_all)]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Announce the end if this taker holds nothing; otherwise other takers find it silent."""
        await end_all(*self._tasks)
        with contextlib.suppress(StorageError):
            await self._call(leaves=True)
        await self._listening.aclose()
        await self._stack.aclose()

    async def _receive(
        self, inbox: str, stack: contextlib.AsyncExitStack, on_break: Callable[[], None] = lambda: None
    ) -> None:
        connection = self._connection
        receiving = connection.receiving
        await connection.persist(lambda: stack.enter_async_context(receiving(inbox, self._hear, on_break)))
        await connection.persist(lambda: connection.check_receiving(inbox))

    def _on_break(self) -> None:
        self._broke = True
        self._leases.break_off()
        self._listeners.break_off()

    def _hear(self, subject: bytes, reply: bytes, answer: Answer) -> None:
        try:
            call = msgspec.msgpack.decode(answer.data, type=Call)
        except msgspec.MsgspecError:
            _log.warning("a message on %s is not a roll call", subject.decode(errors="replace"))
            return
        now = time.monotonic()
        if self._listeners.listens:
            self._leases.hear(call, now)
        if self._listeners.hear(call, now):
            self._loose.difference_update(call.loose)  # the server has forwarded the call
            self._broke = self._broke and not call.broke
            self._due.set()

    async def _call_all(self) -> None:
        listeners = self._listeners
        while True:
            try:
                await self._call()
                if listeners.is_missing:
                    await asyncio.sleep(listeners.delay_s(random.random()))
                    if listeners.is_missing:
                        await self._listen()
                        continue  # the others hear of it at once
                elif listeners.is_surplus:
                    listeners.listens = False
                    await self._listening.aclose()
            except LogUnavailable:  # the connection was closed
                return
            await asyncio.sleep(self._every_s)

    async def _listen(self) -> None:
        """Listen to the calls of all takers from now on."""
        await self._receive(self._calls.of_others, self._listening)
        self._leases, self._listeners.listens = Leases(self._me, self._lease_s), True

    def check(self) -> None:
        """Raise the error that ended the calls or the keeper's part: without them a lost taker stays unnoticed.

        AccessDenied: the server refuses calls with these credentials.
        """
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()):
                raise error

    async def _call(self, *, leaves: bool = False) -> None:
        leases, listens, now = self._leases, self._listeners.listens, self._look(self._broke)
        held = tuple(now.held)
        self._loose.update(now.loose)
        lease_s = 0.0 if leaves and not held else self._lease_s
        call = Call(
            self._me,
            lease_s,
            held,
            tuple(self._loose),
            self._broke,
            knows=listens and leases.knows,
            listens=listens,
            next=self._listeners.next_of(leases.takers) if listens else (),
        )
        subject = self._calls.call_of(self._me, listens=listens)
        self._connection.check_publishing(subject)
        with contextlib.suppress(Away):  # a taker that stays silent loses what it holds
            await self._connection.publish(subject, msgspec.msgpack.encode(call))

    async def _keep_all(self) -> None:
        """Do the keeper's work after each own call that the server has forwarded."""
        while True:
            await self._due.wait()
            self._due.clear()
            leases = self._leases
            if not self._listeners.listens:
                continue
            if orphans := leases.orphans():
                try:
                    await self._give_back(orphans)
                except StorageError:
                    leases.look_again()
            if (start := leases.begin_look()) is not None:
                try:
                    async with asyncio.timeout(LOOK_S):
                        floor, delivered = await self._look_up(start)
                except (StorageError, TimeoutError) as error:
                    _log.info("the deliveries of queue %s were not looked up: %s", self._queue, error)
                    leases.look_again(start)
                else:
                    leases.looked(floor, delivered)
            elif leases.begin_count():
                with contextlib.suppress(StorageError):  # the next count follows soon
                    leases.count(int((await self._info())["num_ack_pending"]))

    async def _info(self) -> Any:
        return await self._connection.request(f"$JS.API.CONSUMER.INFO.{self._stream}.{self._queue}", b"")

    async def _look_up(self, start: int) -> tuple[int, list[int]]:
        """Return the position up to which all is done, and the delivered positions from `start` on."""
        info = await self._info()
        floor, end = int(info["ack_floor"]["stream_seq"]), int(info["delivered"]["stream_seq"])
        self._delivered = int(info["delivered"]["consumer_seq"])
        start = max(start, floor + 1)
        return floor, [] if start > end else await self._positions(start, end)

    async def _positions(self, start: int, end: int) -> list[int]:
        """Return the positions of the queue's events from `start` to `end`."""
        positions: list[int] = []
        heads = ephemeral(self._connection, self._stream, start, self._subject, LOOK_S, only_heads=True)
        async with heads as name, Pull(self._connection, self._stream, name) as pull:
            while not positions or positions[-1] < end:
                before = len(positions)
                await pull.ask(_AT_ONCE)
                while pull.buffer or not (pull.idle or pull.gone):
                    if not pull.buffer and not await pull.wait(LOOK_S):
                        raise Away("the look-up of deliveries did not finish")
                    positions += [pulled.position for pulled in pull.buffer]
                    pull.buffer.clear()
                if len(positions) == before:
                    break
        return [position for position in positions if position <= end]

    async def _give_back(self, orphans: Iterable[int]) -> None:
        """Return events to the queue. The server ignores those that are done or already waiting."""
        count = 0
        for count, position in enumerate(orphans, 1):
            reply = f"$JS.ACK.{self._stream}.{self._queue}.1.{position}.{self._delivered}.0.0"
            await self._connection.publish(reply, b"-NAK")
            if not count % _AT_ONCE:
                await asyncio.sleep(0)
        _log.info("returned %d events to queue %s: no taker holds them", count, self._queue)
