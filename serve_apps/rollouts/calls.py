"""`OpenCalls`: generations for clients outside an engine, as requests in the log that engines answer.

    rollout.requested of purpose `call` -> (an engine) -> rollout.progressed, .completed -> its tokens, as they arrive

A call's name identifies its request. So a client that repeats a request, in any process, gets the answer in the log,
and an interrupted generation continues from its last chunk.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from schemas.doc import doc
from schemas.errors import Conflict, EngineError, RequestRefused, SlimeEventsError, StorageError
from schemas.rollouts import (
    FailureKind,
    RolloutCompleted,
    RolloutFailed,
    RolloutProgressed,
    RolloutRequested,
)
from schemas.subjects import about
from slime_events.core.run.participant import Participant
from slime_events.core.tokens.trajectory import Fetch, Trajectory
from storage.cancellation import fail
from storage.log import Append, Fence, Recorded, once

Appender = Callable[[Append], Awaitable[object]]


@dataclass(slots=True)
class Call:
    """One generation."""

    request: RolloutRequested
    trajectory: Annotated[Trajectory, doc("Its tokens in the log.")]
    ended: Annotated[asyncio.Future[RolloutCompleted | None], doc("Its end; None if it was aborted.")] = field(
        default_factory=asyncio.Future
    )
    moved: Annotated[asyncio.Event, doc("Set with each event about it.")] = field(default_factory=asyncio.Event)
    requested: Annotated[bool, doc("Whether the log has its request.")] = False
    later: Annotated[list[Recorded] | None, doc("Events that arrived while the log is read for it; else None.")] = None
    failed: Annotated[RolloutFailed | None, doc("Failure of the newest attempt in the log.")] = None
    retry: asyncio.Task[None] | None = None

    def resolve(self, completed: RolloutCompleted | None) -> None:
        """Mark the call as ended."""
        if not self.ended.done():
            self.ended.set_result(completed)

    def fail(self, error: Exception) -> None:
        """Mark the call as failed."""
        fail(self.ended, error)


@dataclass(frozen=True, slots=True)
class OpenCalls:
    """The calls of one client that are in progress."""

    worker: Participant
    append: Appender
    fetch: Fetch
    attempts: Annotated[int, doc("Maximum attempts of one generation.")]
    versions: Annotated[
        Callable[[], tuple[int, int | None]] | None,
        doc(
            "Returns the oldest and newest weight version that may answer a request made now; None: those of the first "
            "attempt."
        ),
    ] = None
    by_sample: dict[str, Call] = field(default_factory=dict)

    def open(self, request: RolloutRequested) -> Call:
        """Return a call for a request, which may be in the log already. It receives events until `close`."""
        call = self.by_sample[request.sample] = Call(request, Trajectory(request.sample, request.prompt))
        return call

    def close(self, sample: str) -> None:
        """Stop waiting for a call."""
        self.by_sample.pop(sample, None)

    def apply(self, recorded: Recorded) -> None:
        """Take in the next event of the log."""
        event = recorded.envelope.event
        call = self.by_sample.get(getattr(event, "sample", ""))
        if call is not None and call.later is not None:
            call.later.append(recorded)
        elif call is not None:
            self._take(call, recorded)

    def apply_direct(self, recorded: Recorded) -> bool:
        """Take in an event that an engine sent directly. Return False if the log may have events before it."""
        event = recorded.envelope.event
        if not isinstance(event, RolloutProgressed | RolloutCompleted):
            return False
        call = self.by_sample.get(event.sample)
        if call is None or recorded.position <= call.trajectory.position:
            return True
        if call.later is not None or event.start != call.trajectory.length:
            return False
        before = call.trajectory.position
        try:
            self._take(call, recorded)
        except SlimeEventsError:  # its arrays cannot be read, for example: the reader of the log reports it
            call.trajectory.position = before
            return False
        return True

    def _take(self, call: Call, recorded: Recorded) -> None:
        self._fold(call, recorded)
        self._settle(call)

    def _fold(self, call: Call, recorded: Recorded) -> None:
        event = recorded.envelope.event
        if recorded.position <= call.trajectory.position:
            return
        call.trajectory.position = recorded.position
        if isinstance(event, RolloutRequested):
            call.request, call.requested, call.failed = event, True, None
        elif isinstance(event, RolloutProgressed):
            call.trajectory.progress(event, self.fetch)
        elif isinstance(event, RolloutCompleted):
            call.trajectory.complete(event, self.fetch)
            call.resolve(event)
        elif isinstance(event, RolloutFailed):
            call.requested, call.failed = False, event
        call.moved.set()

    def _settle(self, call: Call) -> None:
        """End a call whose newest attempt has failed, or request the next attempt unless that is already done."""
        failed = call.failed
        if failed is None or call.ended.done() or failed.attempt < call.request.attempt:
            return
        if failed.kind is FailureKind.ABORTED:
            call.resolve(None)
        elif failed.kind is not FailureKind.ENGINE or failed.attempt + 1 >= self.attempts:
            kind = RequestRefused if failed.kind is FailureKind.INVALID else EngineError
            call.fail(kind(f"the generation {failed.sample} failed: {failed.message}"))
        elif call.retry is None or call.retry.done():
            call.retry = asyncio.create_task(self.again(call))

    async def read(self, sample: str) -> None:
        """Read a call's events from the log. An aborted or failed call is requested again, and continues its chunks."""
        call = self.by_sample[sample]
        await self.read_on(call)
        if call.ended.done() and (call.ended.exception() is not None or call.ended.result() is None):
            call.ended = asyncio.Future()
            await self.again(call)

    async def read_on(self, call: Call) -> None:
        """Take in the call's new events in the log, and request its next attempt if the newest has failed."""
        log = self.worker.log
        call.later = []
        async for recorded in log.read(call.trajectory.position + 1, about(log.run, "rollout", call.request.sample)):
            self._fold(call, recorded)
        later, call.later = call.later, None
        for recorded in later:
            self._fold(call, recorded)
        self._settle(call)

    async def again(self, call: Call) -> None:
        """Request the call's next attempt."""
        changes: dict[str, int | None] = {"attempt": call.request.attempt + 1}
        if self.versions is not None:
            changes["min_version"], changes["max_version"] = self.versions()
        call.request = msgspec.structs.replace(call.request, **changes)  # not every client reads requests from the log
        try:
            await self._request(call)
        except StorageError as error:
            call.fail(error)

    async def request(self, request: RolloutRequested) -> None:
        """Append the request of an open call."""
        await self._request(self.by_sample[request.sample])

    async def _request(self, call: Call) -> None:
        envelope = self.worker.enclose(call.request)
        call.requested = True
        await self.append(Append(envelope) if call.request.attempt else once(envelope))

    async def abort(self, call: Call, why: str) -> None:
        """End a call with the tokens that the log has."""
        subject = about(self.worker.log.run, "rollout", call.request.sample)
        while not call.ended.done():
            failed = RolloutFailed(
                sample=call.request.sample,
                group=call.request.group,
                attempt=call.request.attempt,
                kind=FailureKind.ABORTED,
                message=why,
                engine=self.worker.id,
            )
            try:  # this moves the fence of the engine that generates, which then stops
                await self.append(Append(self.worker.enclose(failed), Fence(subject, call.trajectory.position)))
                return
            except Conflict:  # an engine has appended meanwhile, or a new request is not read yet
                await self.read_on(call)
