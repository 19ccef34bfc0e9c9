"""`TransferDesk`: lets engines that wait for a weight version receive it by a collective operation.

It reads who waits from the log (`TransferState`), and begins an epoch with them. A sender process forms the group and
sends. If a member is lost or the time is over, the desk kills that process, which ends the epoch for every member.
Training never waits for any of this, and a failure here only means that engines read files.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from msgspec.structs import replace

from actors.trainer.transfer_sender import Answer, Listening, Over, Send, SenderProcess
from schemas.errors import StorageError, WeightsDamaged
from schemas.transfers import TransferBegun, TransferEnded, TransferOutcome
from schemas.weights import WeightsPublished
from slime_events.core.run.participant import Participant, subjects_of
from slime_events.core.state.transfers import FOLDED, TransferState
from storage.cancellation import end_all
from storage.follow import Follower
from storage.weights.store import WeightStore

log = logging.getLogger(__name__)
GATHER_S = 0.1
"""Seconds that the first engine waits for others, so that one epoch serves many."""
STEP_S = 30.0
"""Seconds for a group to form, and for each of its operations, as in the engines."""
MIN_BYTES_PER_S = 20e6
"""A transfer that is slower ends, and engines read the files."""
RETRY_S = 1.0
"""Seconds until the next try if the sender cannot listen."""
END_S = 5.0
"""Seconds that an open epoch may take when the trainer ends."""


def held_or_stored(memory: str, published: WeightsPublished) -> str:
    """Return the folder of a version in memory if it is there, and else where it is stored."""
    with contextlib.suppress(WeightsDamaged):
        if memory:
            return WeightStore(memory).folder(published.version, published.digest)
    return published.url


class Sender(Protocol):
    """A `SenderProcess`, or a test's stand-in."""

    def send(self, request: Send) -> Answer:
        """Begin to send."""

    def answer(self) -> Answer:
        """Return the next answer."""

    def end(self) -> None:
        """Kill it."""

    def close(self) -> None:
        """Close the connection."""


class TransferDesk:
    """host: this machine's address, for the members. start: starts a sender. memory: folder of versions that are not
    stored yet.
    """

    def __init__(
        self, worker: Participant, host: str, start: Callable[[], Sender] = SenderProcess, *, memory: str = ""
    ) -> None:
        self._memory = memory
        self._worker, self._host, self._start = worker, host, start
        self._state = TransferState()
        self._sender: Sender | None = None
        self._sending: asyncio.Task[None] | None = None
        self._since: float | None = None
        self._newest = 0
        """Newest epoch of this desk, which the state may not have yet."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Serve engines while inside."""
        task = asyncio.create_task(self._run(), name="transfer-desk")
        try:
            yield
        finally:
            if self._sending is not None:
                await asyncio.wait([self._sending], timeout=END_S)
            await end_all(task, *filter(None, [self._sending]))
            await self._drop_sender()

    async def _run(self) -> None:
        try:
            await self._ready_sender()  # importing torch takes seconds
            await self._follow()
        except (StorageError, OSError) as error:
            log.warning("engines read the files of new weight versions, as the trainer cannot send them: %s", error)

    async def _follow(self) -> None:
        async with Follower(self._worker.log, 1, subjects_of(self._worker.log.run, FOLDED)) as follower:
            while True:
                for recorded in await follower.next(wait_s=GATHER_S / 2 if self._state.waiting else 1.0):
                    self._state.apply(recorded.envelope.event)
                if follower.caught_up:
                    await self._decide()

    async def _decide(self) -> None:
        """End an epoch that has lost a member, or begin the next."""
        state = self._state
        if self._sending is not None and self._sending.done():
            self._sending.result()  # raises its error
            self._sending = None
        if state.open is not None and state.lost:
            await self._end(state.open.epoch, state.lost)
            return
        begun = state.next_epoch(self._host)
        if begun is None or self._sending is not None or self._newest > state.epochs:
            self._since = None
            return
        now = time.monotonic()
        self._since = self._since or now
        if state.all_wait or now - self._since >= GATHER_S:
            assert state.offered is not None, "there is an epoch only of an offered version"
            self._since = None
            self._sending = asyncio.create_task(self._send(begun, state.offered), name=f"transfer-{begun.epoch}")

    async def _end(self, epoch: int, reason: str) -> None:
        """End an open epoch, which may be of an earlier trainer."""
        if self._sending is not None:
            await end_all(self._sending)
            self._sending = None
            await self._drop_sender()
        await self._record(TransferEnded(epoch=epoch, outcome=TransferOutcome.FAILED, reason=reason))

    async def _send(self, begun: TransferBegun, published: WeightsPublished) -> None:
        """Begin the epoch, send the version, and record the end."""
        since, reason = time.monotonic(), ""
        epoch, digest = begun.epoch, published.digest
        request = Send(
            epoch, held_or_stored(self._memory, published), digest, self._host, begun.world, begun.backend, STEP_S
        )
        has_begun = False
        try:
            async with asyncio.timeout(2 * STEP_S + published.bytes / MIN_BYTES_PER_S):
                sender = await self._ready_sender()
                answer = await asyncio.to_thread(sender.send, request)
                if isinstance(answer, Listening):
                    await self._worker.append([replace(begun, port=answer.port)])
                    self._newest, has_begun = epoch, True
                    answer = await asyncio.to_thread(sender.answer)
                reason = answer.reason if isinstance(answer, Over) else "the sender answers in another order"
        except (OSError, TimeoutError) as error:
            reason = str(error) or "the time is over"
        if reason:
            log.warning("weight version %d was not sent, so engines read its files: %s", begun.version, reason)
            await self._drop_sender()
        outcome = TransferOutcome.FAILED if reason else TransferOutcome.SENT
        seconds = time.monotonic() - since
        if has_begun:
            await self._record(TransferEnded(epoch=epoch, outcome=outcome, reason=reason, seconds=seconds))
        else:
            await asyncio.sleep(RETRY_S)

    async def _record(self, ended: TransferEnded) -> None:
        await self._worker.append([ended])

    async def _ready_sender(self) -> Sender:
        if self._sender is None:
            self._sender = await asyncio.to_thread(self._start)
        return self._sender

    async def _drop_sender(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            await asyncio.to_thread(sender.end)  # first: a thread may read from the connection
            sender.close()
