"""`Conductor`: reads the log, decides, appends. It holds a fold and nothing else.

    turn:  events since the last look -> fold -> decide (pure) -> one atomic append -> ... read back -> next turn

It never acts on what it has said before it has read it back, so its state is at all times a fold of the log, and a
conductor that is killed at any point is replaced by one that reads the same log.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable

from actors.recorded_rollout_reader import Recaller
from actors.state_keeper import StateKeeper
from schemas.archives import ArchiveSealed
from schemas.errors import Conflict, SlimeEventsError
from schemas.event import Event
from schemas.groups import GroupRejected
from schemas.rollouts import RolloutProgressed
from schemas.runs import FinishReason, RunEvent, RunFailed, RunFinished
from schemas.subjects import about, every_event, of_type
from schemas.workers import WorkerJoined
from slime_events.analysis.model.rejections import Rejections
from slime_events.core.run.participant import Participant, run_events_before
from slime_events.core.state.apply import apply
from slime_events.core.state.run import FOLD, RunPhase, RunState, state_digest
from slime_events.loop.conductor.accept import Judge
from slime_events.loop.conductor.cycle import recovery_events, turn
from slime_events.loop.conductor.decide import is_broken, is_complete, waits_for
from slime_events.loop.conductor.plan import Plan
from slime_events.loop.conductor.prompts import PromptFeed
from slime_events.loop.conductor.recall import recalls_due
from slime_events.loop.conductor.seal import Normalise
from slime_events.loop.conductor.stall import Stall
from storage.follow import Follower
from storage.log import Append, Fence, Recorded, append_all, once

log = logging.getLogger(__name__)

Offload = Callable[[Event], Awaitable[Event]]
"""Puts an event's large arrays into the blob store."""

NOTHING_TO_DECIDE = (RolloutProgressed, ArchiveSealed, WorkerJoined)
"""Most events of a run are these; they change no decision that the end of their rollout will not change too."""
TICK_S = 0.5
AT_MOST = 64
"""Events that are always stored in one append."""
FIRST = 16
"""Events in the first append of a longer turn: engines begin on the first requests of a step while the others are made
ready and stored.
"""


class Conductor:
    """The shell around `slime_events.loop.conductor.decide`.

    deadline_s: seconds without progress after which the run is failed with what it waited for. keeper: where the state
    of a conductor before this one may be found. recaller: reads the recorded rollouts that were drawn.
    """

    def __init__(
        self,
        worker: Participant,
        plan: Plan,
        feed: PromptFeed,
        judge: Judge,
        normalise: Normalise,
        offload: Offload,
        *,
        deadline_s: float,
        keeper: StateKeeper | None = None,
        recaller: Recaller | None = None,
    ) -> None:
        self._worker, self._plan, self._feed = worker, plan, feed
        self._judge, self._normalise, self._offload = judge, normalise, offload
        self._stall = Stall(deadline_s, 2 * TICK_S, time.monotonic())
        self._keeper = keeper or StateKeeper(None)
        self._recaller = recaller or Recaller(worker.id, None)
        self._chain_before = ""
        self._said = 0
        self._stop_asked = False
        self._begun = self._over = False
        self._run_at = 0
        self._looked_at = time.monotonic()
        self.state = RunState(run=worker.log.run)

    def stop(self) -> None:
        """End the run cleanly at the next look at the log: everything acked stays, `resume` goes on from it."""
        self._stop_asked = True

    async def run(self) -> RunPhase:
        """Conduct until the run is finished or failed."""
        await self._load()
        try:
            async with Follower(self._worker.log, self.state.events + 1) as follower:
                await self._conduct(follower)
        finally:
            await self._keeper.close(self.state, self._chain_before)
        return self.state.phase

    async def _load(self) -> None:
        """Begin with the state that was put away last, and with what the run had said of itself by then."""
        self.state = await self._keeper.load(self._worker.log)
        await self._feed.recall(self._worker.log, self.state.events)
        for recorded in await run_events_before(self.state.events + 1, self._worker.log):
            self._take_run_event(recorded)

    async def _conduct(self, follower: Follower) -> None:
        while not (self._over and follower.caught_up):
            due = self._fold(await follower.next(wait_s=TICK_S))
            self._keeper.look(self.state, self._chain_before)
            if not follower.caught_up or self.state.events < self._said or not (due or self._tick()):
                continue
            try:
                await self._turn()
            except Conflict as conflict:
                log.warning("lost a race and looks again: %s", conflict)
                self._begun, self._looked_at = False, 0.0  # a part may have been said; whatever comes next
            except SlimeEventsError as error:
                with contextlib.suppress(Conflict):  # the run was resumed without this one, or has ended
                    await self._fail(str(error), waited_for=None)
                raise

    def _fold(self, events: list[Recorded]) -> bool:
        """Whether there may be something to decide now."""
        due = False
        for recorded in events:
            self._chain_before = self.state.chain
            apply(self.state, recorded)
            self._feed.hear(recorded)
            self._take_run_event(recorded)
            due = due or not isinstance(recorded.envelope.event, NOTHING_TO_DECIDE)
        return due

    def _take_run_event(self, recorded: Recorded) -> None:
        self._over = self._worker.is_over(self._over, recorded.envelope.event)
        if isinstance(recorded.envelope.event, RunEvent):
            self._run_at = recorded.position

    def _tick(self) -> bool:
        return self._stop_asked or time.monotonic() - self._looked_at >= TICK_S

    async def _turn(self) -> None:
        state, plan = self.state, self._plan
        self._looked_at = time.monotonic()
        if self._over or state.phase is not RunPhase.RUNNING:
            return
        if is_complete(state, plan) or self._stop_asked:
            await self._finish()
            return
        reason = is_broken(state, plan)
        if reason:
            reason += await self._commonest(state.broken_in_a_row)
        reason = reason or self._stalled()
        if reason:
            await self._fail(reason, waited_for=waits_for(state, plan))
            return
        if not self._begun:
            self._said = await self._append(recovery_events(state, plan, self._feed))
            self._begun = True
            if self._said > state.events:
                return  # nothing is decided on what was said in part
        self._said = await self._append(turn(state, plan, self._judge, self._normalise, self._feed))
        self._said = await self._append(await self._recaller.answers(recalls_due(state)))

    async def _append(self, events: list[Event]) -> int:
        """In order; the position of the last. What follows the first few is made ready only once those are stored."""
        first = FIRST if len(events) > AT_MOST else len(events)
        positions = [self._said]
        for part in (events[:first], events[first:]):
            appends = []
            for event in part:
                envelope = self._worker.enclose(await self._offload(event))
                appends.append(Append(envelope) if getattr(event, "attempt", 0) else once(envelope))
            positions += await append_all(self._worker.log, appends)
        return max(positions)

    async def _commonest(self, newest: int) -> str:
        """What most of so many newest rejections say. From the log: the state counts causes, and keeps no reasons."""
        said: deque[GroupRejected] = deque(maxlen=newest)
        async for recorded in self._worker.log.read(1, of_type(self.state.run, "group.rejected")):
            if isinstance(recorded.envelope.event, GroupRejected):
                said.append(recorded.envelope.event)
        rejections = Rejections()
        for event in said:
            rejections.apply(event)
        return f"; most often: {rejections.commonest()}"

    def _stalled(self) -> str | None:
        idle = self._stall.seconds(self.state.moved, time.monotonic())
        if idle is None:
            return None
        return f"no progress for {idle:.0f} s while waiting for {waits_for(self.state, self._plan)}"

    async def _finish(self) -> None:
        """Say that the run is over, fenced on the whole log so that the digest is of all that came before."""
        state = self.state
        event = RunFinished(
            reason=FinishReason.INTERRUPTED if self._stop_asked else FinishReason.ALL_STEPS,
            steps=state.steps,
            events=state.events,
            state_digest=state_digest(state),
            fold=FOLD,
        )
        await self._worker.append_fenced(event, Fence(every_event(state.run), state.events))

    async def _fail(self, reason: str, waited_for: str | None) -> None:
        log.error("the run failed: %s", reason)
        event = RunFailed(role="conductor", reason=reason, waited_for=waited_for, at_events=self.state.events)
        self._said = await self._worker.append_fenced(event, Fence(about(self.state.run, "run", "run"), self._run_at))
