"""`Conductor`: the controller of a run. It reads the log, decides and appends; its only state is a fold of the log.

    cycle:  new events -> fold -> decide (pure) -> one atomic append -> ... read back -> next cycle

The conductor acts on its own events only after reading them back, so its state is always a fold of the log. A conductor
that is killed at any point is replaced by a new one that reads the same log.
"""

import contextlib
import logging
import time
from collections import Counter
from typing import Annotated, NamedTuple

from actors.offered_prompts import OfferedPrompts
from actors.offered_rollouts import OfferedRollouts, is_offered
from actors.recorded_rollout_reader import RecordedRolloutReader
from actors.step_samples import StepSamples
from schemas.archives import ArchiveSealed
from schemas.doc import doc
from schemas.errors import Conflict, SlimeEventsError
from schemas.event import Event
from schemas.groups import GroupRejected
from schemas.ids import INBOX
from schemas.prompts import PromptSubmitted
from schemas.rollouts import RolloutProgressed
from schemas.runs import FinishReason, RunEvent, RunFailed, RunFinished
from schemas.subjects import about, every_event, of_type
from schemas.workers import WorkerJoined
from slime_events.core.run.participant import Participant, run_events_before
from slime_events.core.state.keeper import StateKeeper
from slime_events.core.state.run import FOLD, RunPhase, RunState, state_digest
from slime_events.core.state.snapshot import Snapshot
from slime_events.core.state.state_fold import StateFold
from slime_events.loop.conductor.cycle import Policy, recovery_events, run_cycle
from slime_events.loop.conductor.decide import Stall, decides_with_more_waiting, is_broken, is_complete, waits_for
from slime_events.loop.conductor.draw import reused_rollouts_due
from slime_events.loop.conductor.prompts import PromptFeed
from slime_events.model.rejections import Rejections, reason_of
from storage.follow import Follower
from storage.log import Append, Fence, Recorded, append_all, once
from storage.payloads import Offload

log = logging.getLogger(__name__)

NOTHING_TO_DECIDE = (RolloutProgressed, ArchiveSealed, WorkerJoined)
"""The most frequent events of a run, which change no decision by themselves."""
LOOK_BACK = 10_000
"""Number of newest events that are searched first for the newest rejections."""
TICK_S = 0.5
AT_MOST = 64
"""Largest number of events that a cycle appends at once."""
FIRST = 16
"""Events in the first append of a longer cycle: engines start on the first requests of a step while the other events
are prepared and stored.
"""


class Readers(NamedTuple):
    """Readers of whole events for the conductor."""

    recorded: Annotated[RecordedRolloutReader, doc("Reads rollouts of another run that this run reuses.")]
    finishing: Annotated[StepSamples | None, doc("Reads a step's rollouts for the user's functions.")] = None
    offered: Annotated[OfferedPrompts | None, doc("Reads prompts offered while no conductor was running.")] = None
    outside: Annotated[OfferedRollouts | None, doc("Reads rollouts that producers made outside.")] = None


class Conductor:
    """Runs `run_cycle` on the log's events and appends its decisions.

    deadline_s: seconds without progress after which the run fails. keeper: loads and stores snapshots of the state.
    """

    def __init__(
        self,
        worker: Participant,
        policy: Policy,
        feed: PromptFeed,
        offload: Offload,
        *,
        deadline_s: float,
        keeper: StateKeeper[Snapshot] | None = None,
        readers: Readers | None = None,
    ) -> None:
        self._worker, self._policy, self._feed, self._offload = worker, policy, feed, offload
        self._stall = Stall(deadline_s, 2 * TICK_S, time.monotonic())
        self._keeper: StateKeeper[Snapshot] = keeper or StateKeeper(None)
        self._readers = readers or Readers(RecordedRolloutReader(worker.id, None))
        self._folded = StateFold(worker.log.run)
        self._appended = self._run_at = 0
        self._begun = self._over = self._stop_asked = False
        self._last_cycle = time.monotonic() - TICK_S  # the first cycle is due at once

    @property
    def state(self) -> RunState:
        """The fold of the log up to the last read event."""
        return self._folded.state

    def stop(self) -> None:
        """End the run cleanly at the next cycle; `resume` can continue it."""
        self._stop_asked = True

    async def run(self) -> RunPhase:
        """Conduct until the run is finished or failed, starting from the newest snapshot."""
        await self._keeper.restore(self._folded, self._worker.log)
        await self._feed.restore(self._worker.log, self.state.position)
        if self._policy.texts is not None:
            await self._policy.texts.restore(self._worker.log, self.state)
        if self._policy.commands is not None:
            self._policy.commands.first = self.state.first
            await self._policy.commands.restore(self._worker.log)
        for recorded in await run_events_before(self.state.position + 1, self._worker):
            self._take_run_event(recorded)
        try:
            async with Follower(self._worker.log, self.state.position + 1) as follower:
                await self._conduct(follower)
        finally:
            await self._keeper.close(self._folded)
        return self.state.phase

    async def _conduct(self, follower: Follower) -> None:
        wait_s, due = 0.0, False
        while not (self._over and follower.caught_up):
            due = self._fold(await follower.next(wait_s)) or due
            wait_s = TICK_S
            self._keeper.observe(self._folded)
            due = due or self._stop_asked or time.monotonic() - self._last_cycle >= TICK_S
            if not due or not follower.caught_up or self.state.position < self._appended:
                continue
            due = False
            try:
                await self._cycle()
            except Conflict as conflict:
                log.warning("lost a race; reading the log and deciding again: %s", conflict)
                self._begun, self._last_cycle = False, 0.0  # part of the events may be in the log
            except SlimeEventsError as error:
                with contextlib.suppress(Conflict):  # another conductor has resumed the run, or the run has ended
                    await self._fail(str(error), waited_for=None)
                raise

    def _fold(self, events: list[Recorded]) -> bool:
        """Fold events and return whether a decision may be due."""
        due = more = False
        for recorded in events:
            self._folded.apply(recorded)
            self._feed.observe(recorded)
            if self._policy.texts is not None:
                self._policy.texts.apply(recorded.envelope.event, self.state)
            if self._policy.commands is not None:
                self._policy.commands.apply(recorded.envelope.event)
            self._take_run_event(recorded)
            event = recorded.envelope.event
            if isinstance(event, PromptSubmitted) and event.dataset == INBOX:
                more = True
            else:
                due = due or not isinstance(event, NOTHING_TO_DECIDE)
        return due or (more and decides_with_more_waiting(self.state, self._policy.plan))

    def _take_run_event(self, recorded: Recorded) -> None:
        self._over = self._worker.is_over(self._over, recorded.envelope.event)
        if isinstance(recorded.envelope.event, RunEvent):
            self._run_at = recorded.position

    async def _cycle(self) -> None:
        state, policy, plan = self.state, self._policy, self._policy.plan
        self._last_cycle = time.monotonic()
        if self._over or state.phase is not RunPhase.RUNNING:
            return
        if is_complete(state, plan) or self._stop_asked:
            finish = FinishReason.INTERRUPTED if self._stop_asked else FinishReason.ALL_STEPS
            await append_finished(self._worker, state, finish)
            return
        if reason := await self._failure():
            await self._fail(reason, waited_for=waits_for(state, plan))
            return
        if not self._begun:
            self._appended = await self._append(recovery_events(state, plan, self._feed))
            self._begun = True
            if self._appended > state.position:
                return  # the next decision needs these events read back
        decides = (policy.group_filter, policy.normalise, self._feed, policy.post_process)
        events = run_cycle(state, plan, *decides)
        if policy.commands is not None:
            events += policy.commands.to_seal(state.next_step)
        readers = self._readers
        if readers.finishing is not None:
            events = await readers.finishing.finish(events, state)
        self._appended = await self._append(events)
        reusable = reused_rollouts_due(state)
        recorded = [rollout for rollout in reusable if not is_offered(rollout)]
        self._appended = await self._append(await readers.recorded.answers(recorded))
        if readers.outside is not None:
            self._appended = await self._append(await readers.outside.answers(reusable))
        if readers.offered is not None:
            self._appended = await self._append(await readers.offered.answers(state))

    async def _append(self, events: list[Event]) -> int:
        """Append in order and return the last position. Later events are prepared after the first few are stored."""
        first = FIRST if len(events) > AT_MOST else len(events)
        positions = [self._appended]
        for part in (events[:first], events[first:]):
            appends = []
            for event in part:
                envelope = self._worker.enclose(await self._offload(event))
                appends.append(Append(envelope) if getattr(event, "attempt", 0) else once(envelope))
            positions += await append_all(self._worker.log, appends)
        return max(positions)

    async def _failure(self) -> str | None:
        """Return why the run cannot continue, or None."""
        if reason := is_broken(self.state, self._policy.plan):
            newest = await self._newest_rejections(self.state.broken_in_a_row)
            return f"{reason}; most often: {Rejections(Counter(map(reason_of, newest))).commonest()}"
        excused = self._policy.outsiders.are_waited_for(self.state, self._policy.plan)
        idle = self._stall.seconds(self.state.moved, time.monotonic(), excused=excused)
        if idle is None:
            return None
        return f"no progress for {idle:.0f} s while waiting for {waits_for(self.state, self._policy.plan)}"

    async def _newest_rejections(self, count: int) -> list[GroupRejected]:
        """Read the newest rejections from the log, since the state has no reasons. Search further back until found."""
        back = LOOK_BACK
        while True:
            start = max(1, self.state.position - back)
            read = self._worker.log.read(start, of_type(self.state.run, "group.rejected"))
            events = [recorded.envelope.event async for recorded in read]
            if len(events) >= count or start == 1:
                return [event for event in events[-count:] if isinstance(event, GroupRejected)]
            back *= 4

    async def _fail(self, reason: str, waited_for: str | None) -> None:
        log.error("the run failed: %s", reason)
        event = RunFailed(role="conductor", reason=reason, waited_for=waited_for, at_events=self.state.events)
        fence = Fence(about(self.state.run, "run", "run"), self._run_at)
        self._appended = await self._worker.append_fenced(event, fence)


async def append_finished(worker: Participant, state: RunState, reason: FinishReason) -> None:
    """Append run.finished, fenced on the whole log so that its digest covers all earlier events. Raises Conflict."""
    event = RunFinished(
        reason=reason, steps=state.steps, events=state.events, state_digest=state_digest(state), fold=FOLD
    )
    await worker.append_fenced(event, Fence(every_event(state.run), state.position))
