"""`RunLog`: a gateway's access to a run's log: appends as a participant, and follows the generations of its turns."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Self

from schemas.errors import AccessDenied, SlimeEventsError
from schemas.event import Event
from schemas.rollouts import RolloutRequested
from schemas.subjects import about, matches, of_type
from serve_apps.rollouts.calls import Call, OpenCalls
from slime_events.core.run.participant import Participant
from slime_events.core.tokens.trajectory import Fetch
from storage.cancellation import end_all
from storage.group_commit import GroupCommit
from storage.log import Append, EventLog, Fence, Recorded, once

LOOK_S = 0.003
"""Seconds between two reads of the log while an engine generates, for a gateway that gets no notifications."""
TOLD_LOOK_S = 0.1
"""Same for a gateway that gets notifications. These reads find lost notifications and generations of other gateways."""
AWAY_S = 0.5
log = logging.getLogger(__name__)


class RunLog:
    """Appends events and follows generations, as a context manager.

    offload: moves an event's large arrays to the blob store. attempts: most attempts of one generation. look_s: seconds
    between two reads of the log. tells_early: send requests to the engine before they are stored. Only for a run with
    one engine: of several engines, the log decides which one generates. trace_share: share of groups that are traced.
    """

    def __init__(
        self,
        events: EventLog,
        fetch: Fetch,
        offload: Callable[[Event], Awaitable[Event]],
        *,
        attempts: int,
        look_s: float = TOLD_LOOK_S,
        tells_early: bool = False,
        trace_share: float = 0.0,
    ) -> None:
        self.events, self.fetch, self._offload, self._look_s = events, fetch, offload, look_s
        self.worker = Participant(events, "gateway", trace_share=trace_share)  # its id is a part of its events' ids
        self.commit = GroupCommit(events)
        self.calls = OpenCalls(self.worker, self._append_one, fetch, attempts, lambda: (0, None))
        self._position, self._has_calls, self._look = 0, asyncio.Event(), asyncio.Event()
        self._stack = contextlib.AsyncExitStack()
        self._tells_early, self._engine = tells_early, ""

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self.commit)
            try:
                await stack.enter_async_context(self.events.listen(self.worker.id, self._on_notified))
            except AccessDenied as error:
                self._look_s = LOOK_S
                log.warning(
                    "%s: the gateway gets no notifications of new tokens. It reads the log every %.0f ms, which delays "
                    "answers. `slime-events nats-config --agents` prints the permissions that it needs",
                    error,
                    LOOK_S * 1e3,
                )
            activated = await self.events.last(of_type(self.events.run, "weights.activated"))
            if activated is not None:
                self._see_engine(activated)
            stack.push_async_callback(end_all, asyncio.create_task(self._follow(), name="agents' calls"))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def _see_engine(self, recorded: Recorded) -> None:
        """Note the engine of the newest event, which is the running engine."""
        self._engine = getattr(recorded.envelope.event, "engine", self._engine)

    def _on_notified(self, recorded: Recorded) -> None:
        self._see_engine(recorded)
        if not self.calls.apply_direct(recorded):
            self._look.set()

    async def append(self, events: Sequence[Event], fence: Fence) -> list[Recorded]:
        """Append events in one call. Returns the stored events without their bytes. Raises Conflict, StorageError.

        Events with the fence's subject are appended under the fence, others only if their subject is new.
        """
        envelopes = [self.worker.enclose(await self._offload(event)) for event in events]
        appends = [
            Append(envelope, fence) if matches(fence.subject, envelope.subject) else once(envelope)
            for envelope in envelopes
        ]
        await self._tell_early(appends)
        positions = await self.commit.append(appends)
        pairs = zip(positions, envelopes, strict=True)
        return [Recorded(position, envelope.subject, envelope, b"") for position, envelope in pairs]

    async def _tell_early(self, appends: Sequence[Append]) -> None:
        """Send requests to the engine, which generates while they are stored and returns nothing before that."""
        requests = [append for append in appends if isinstance(append.envelope.event, RolloutRequested)]
        if not (self._tells_early and self._engine and requests):
            return
        messages = [Recorded(0, append.envelope.subject, append.envelope, append.encoded()) for append in requests]
        try:
            await self.events.notify(self._engine, messages, early=True)
        except AccessDenied as error:
            self._tells_early = False
            log.warning(
                "%s: engines get an agent's request only once it is in the log, which delays answers. "
                "`slime-events nats-config --agents` prints the permissions that a gateway needs",
                error,
            )

    async def call(self, request: RolloutRequested, *, since: int) -> Call:
        """Follow the generation of a request that is in the log. since: a position before the request."""
        if not self.calls.by_sample:
            self._position = max(self._position, since)
        call = self.calls.open(request)
        self._has_calls.set()
        return call

    async def read_call(self, sample: str) -> Call | None:
        """Follow a generation that another gateway requested; None if the log has no such request."""
        first = None
        async for recorded in self.events.read(1, about(self.events.run, "rollout", sample)):
            first = recorded.envelope.event
            break
        if not isinstance(first, RolloutRequested):
            return None
        call = await self.call(first, since=await self.events.end())
        await self.calls.read(sample)
        return call

    async def _append_one(self, append: Append) -> None:
        await self.commit.append([append])

    async def _follow(self) -> None:
        """Read the log for the events of generations, while any is in progress."""
        run = self.events.run
        subjects = tuple(of_type(run, f"rollout.{verb}") for verb in ("progressed", "completed", "failed"))
        while True:
            await self._has_calls.wait()
            if not self.calls.by_sample:
                self._has_calls.clear()
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._look_s):
                    await self._look.wait()
            self._look.clear()
            try:
                async for recorded in self.events.read(self._position + 1, subjects):
                    self._position = recorded.position
                    self._see_engine(recorded)
                    self.calls.apply(recorded)
            except SlimeEventsError as error:
                log.warning("cannot read the log of run %s, next try in %g s: %s", run, AWAY_S, error)
                await asyncio.sleep(AWAY_S)
