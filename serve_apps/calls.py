"""`OpenCalls`: generations that somebody outside an engine asked for, as requests in the log that the engines answer.

    rollout.requested of purpose `call` -> (an engine) -> rollout.progressed, .completed -> its tokens, as they come

A call's name says what it asks. So whoever asks again, in another process, gets the answer that is in the log, and what
an engine was in the midst of goes on from its last chunk.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

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
from slime_events.core.trajectory import Fetch, Trajectory
from storage.cancellation import fail
from storage.log import Append, Fence, Recorded, once

Appender = Callable[[Append], Awaitable[object]]


@dataclass(slots=True)
class Call:
    """One generation. known: what the log has of it. ended: how it was completed; None where it was aborted. moved: set
    with each event of it. requested: by an event in the log.
    """

    request: RolloutRequested
    known: Trajectory
    ended: asyncio.Future[RolloutCompleted | None] = field(default_factory=asyncio.Future)
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    requested: bool = False
    later: list[Recorded] | None = None
    """What came while the log was read for it."""
    retry: asyncio.Task[None] | None = None

    def resolve(self, completed: RolloutCompleted | None) -> None:
        """It has ended."""
        if not self.ended.done():
            self.ended.set_result(completed)

    def fail(self, error: Exception) -> None:
        """It cannot be made."""
        fail(self.ended, error)


@dataclass(frozen=True, slots=True)
class OpenCalls:
    """The calls of one asker that are under way. attempts: of one generation, at most. versions: the weights that may
    make one that is requested now, oldest and newest.
    """

    worker: Participant
    append: Appender
    fetch: Fetch
    attempts: int
    versions: Callable[[], tuple[int, int | None]]
    by_sample: dict[str, Call] = field(default_factory=dict)

    def open(self, request: RolloutRequested) -> Call:
        """A call that is to be requested, or was; until `close`, its events are for it."""
        call = self.by_sample[request.sample] = Call(request, Trajectory(request.sample, request.prompt))
        return call

    def close(self, sample: str) -> None:
        """Nobody waits for it any more."""
        self.by_sample.pop(sample, None)

    def apply(self, recorded: Recorded) -> None:
        """Take in the next event of the log."""
        event = recorded.envelope.event
        call = self.by_sample.get(getattr(event, "sample", ""))
        if call is not None and call.later is not None:
            call.later.append(recorded)
        elif call is not None:
            self._take(call, recorded)

    def take_told(self, recorded: Recorded) -> bool:
        """Take in an event of which its engine has told; False where something may lie before it: the log has that."""
        event = recorded.envelope.event
        if not isinstance(event, RolloutProgressed | RolloutCompleted):
            return False
        call = self.by_sample.get(event.sample)
        if call is None or recorded.position <= call.known.position:
            return True
        if call.later is not None or event.start != call.known.length:
            return False
        before = call.known.position
        try:
            self._take(call, recorded)
        except SlimeEventsError:  # as where its arrays are out of reach: whoever reads the log says so
            call.known.position = before
            return False
        return True

    def _take(self, call: Call, recorded: Recorded) -> None:
        event = recorded.envelope.event
        if recorded.position <= call.known.position:
            return
        call.known.position = recorded.position
        if isinstance(event, RolloutRequested):
            call.request, call.requested = event, True
        elif isinstance(event, RolloutProgressed):
            call.known.progress(event, self.fetch)
        elif isinstance(event, RolloutCompleted):
            call.known.complete(event, self.fetch)
            call.resolve(event)
        elif isinstance(event, RolloutFailed):
            call.requested = False
            if event.kind is FailureKind.ABORTED:
                call.resolve(None)
            elif event.kind is not FailureKind.ENGINE or event.attempt + 1 >= self.attempts:
                kind = RequestRefused if event.kind is FailureKind.INVALID else EngineError
                call.fail(kind(f"the generation {event.sample} failed: {event.message}"))
            else:
                call.retry = asyncio.create_task(self.again(call))
        call.moved.set()

    async def read(self, sample: str) -> None:
        """What the log has of it. What was aborted or failed then is asked for again, and goes on from its chunks."""
        call = self.by_sample[sample]
        await self._read_on(call)
        if call.ended.done() and (call.ended.exception() is not None or call.ended.result() is None):
            call.ended = asyncio.Future()
            await self.again(call)

    async def _read_on(self, call: Call) -> None:
        """Take in what the log has of it by now."""
        log = self.worker.log
        call.later = []
        async for recorded in log.read(call.known.position + 1, about(log.run, "rollout", call.request.sample)):
            self._take(call, recorded)
        later, call.later = call.later, None
        for recorded in later:
            self._take(call, recorded)

    async def again(self, call: Call) -> None:
        """Request its next attempt."""
        oldest, newest = self.versions()
        changes = {"attempt": call.request.attempt + 1, "min_version": oldest, "max_version": newest}
        call.request = msgspec.structs.replace(call.request, **changes)  # not all who ask hear of requests from the log
        try:
            await self.request(call.request)
        except StorageError as error:
            call.fail(error)

    async def request(self, request: RolloutRequested) -> None:
        """Append a call's request."""
        envelope = self.worker.enclose(request)
        self.by_sample[request.sample].requested = True
        await self.append(Append(envelope) if request.attempt else once(envelope))

    async def abort(self, call: Call, why: str) -> None:
        """End it: it has the tokens then that the log has."""
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
            try:  # the fence of the engine that makes it has moved then, so it ends
                await self.append(Append(self.worker.enclose(failed), Fence(subject, call.known.position)))
                return
            except Conflict:  # an engine wrote meanwhile, or what was asked for again is not read yet
                await self._read_on(call)
