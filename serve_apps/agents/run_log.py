"""`RunLog`: a run's log as a gateway writes to it: a participant, its appends, and the calls of turns under way."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Self

from schemas.errors import AccessDenied, SlimeEventsError
from schemas.event import Event
from schemas.rollouts import RolloutRequested
from schemas.subjects import about, matches, of_type
from serve_apps.calls import Call, OpenCalls
from slime_events.core.run.participant import Participant
from slime_events.core.trajectory import Fetch
from storage.cancellation import end_all
from storage.group_commit import GroupCommit
from storage.log import Append, EventLog, Fence, Recorded, once

LOOK_S = 0.003
"""Seconds between two looks at the log while an engine answers, for a gateway that nobody tells."""
TOLD_LOOK_S = 0.1
"""The same for one that is told: for what was lost on the way, or is another gateway's."""
AWAY_S = 0.5
log = logging.getLogger(__name__)


class RunLog:
    """As a context manager. offload: puts an event's large arrays into the blob store. attempts: of one generation.
    tells_early: the run has one engine, which is told of requests before they are stored. Of several it is the log that
    chooses one.
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
    ) -> None:
        self.events, self.fetch, self._offload, self._look_s = events, fetch, offload, look_s
        self.worker = Participant(events, "gateway")  # an id of its own: that of its events has it
        self.commit = GroupCommit(events)
        self.calls = OpenCalls(self.worker, self._append_one, fetch, attempts, lambda: (0, None))
        self._position, self._some, self._look = 0, asyncio.Event(), asyncio.Event()
        self._stack = contextlib.AsyncExitStack()
        self._tells_early, self._engine = tells_early, ""

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self.commit)
            try:
                await stack.enter_async_context(self.events.hear(self.worker.id, self._told))
            except AccessDenied as error:
                self._look_s = LOOK_S
                log.warning(
                    "%s: the gateway is not told when engines make tokens, and looks for them every %.0f ms, which "
                    "agents wait longer for: `slime-events nats-config --agents` prints what it may hear",
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
        """The newest that the log has is the one that lives."""
        self._engine = getattr(recorded.envelope.event, "engine", self._engine)

    def _told(self, recorded: Recorded) -> None:
        self._see_engine(recorded)
        if not self.calls.take_told(recorded):
            self._look.set()

    async def append(self, events: Sequence[Event], fence: Fence) -> list[Recorded]:
        """Append in one call, under one fence; those about something else than it may be there only once. What was
        stored, without its bytes. Raises Conflict, StorageError.
        """
        envelopes = [self.worker.enclose(await self._offload(event)) for event in events]
        appends = [Append(one, fence) if matches(fence.subject, one.subject) else once(one) for one in envelopes]
        await self._tell_early(appends)
        positions = await self.commit.append(appends)
        return [Recorded(at, one.subject, one, b"") for at, one in zip(positions, envelopes, strict=True)]

    async def _tell_early(self, appends: Sequence[Append]) -> None:
        """The engine begins with requests while they are stored, and shows nothing until they are."""
        requests = [one for one in appends if isinstance(one.envelope.event, RolloutRequested)]
        if not (self._tells_early and self._engine and requests):
            return
        told = [Recorded(0, one.envelope.subject, one.envelope, one.encoded()) for one in requests]
        try:
            await self.events.tell(self._engine, told, early=True)
        except AccessDenied as error:
            self._tells_early = False
            log.warning(
                "%s: engines begin with an agent's request when the log has it, and its client waits longer: "
                "`slime-events nats-config --agents` prints what a gateway may say",
                error,
            )

    async def call(self, request: RolloutRequested, *, since: int) -> Call:
        """The call of a request that is in the log. since: a position before it."""
        if not self.calls.by_sample:
            self._position = max(self._position, since)
        call = self.calls.open(request)
        self._some.set()
        return call

    async def read_call(self, sample: str) -> Call | None:
        """A call that another gateway requested; None where the log has none."""
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
        """Hand events of calls over, while there are some under way."""
        run = self.events.run
        subjects = tuple(of_type(run, f"rollout.{verb}") for verb in ("progressed", "completed", "failed"))
        while True:
            await self._some.wait()
            if not self.calls.by_sample:
                self._some.clear()
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
                log.warning("the gateway waits for the log of run %s: %s", run, error)
                await asyncio.sleep(AWAY_S)
