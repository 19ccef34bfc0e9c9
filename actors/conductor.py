"""`Conductor`: reads the log, decides, appends. It holds a fold and nothing else.

    turn:  events since the last look -> fold -> decide (pure) -> one atomic append -> ... read back -> next turn

It never acts on what it has said before it has read it back, so its state is at all times a fold of the log, and a
conductor that is killed at any point is replaced by one that reads the same log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

from schemas.archives import ArchiveSealed
from schemas.errors import Conflict, DataError, SlimeEventsError
from schemas.event import Event, Purpose
from schemas.prompts import PromptSubmitted
from schemas.rollouts import RolloutProgressed
from schemas.runs import FinishReason, RunFailed, RunFinished
from schemas.subjects import every_event
from schemas.workers import WorkerJoined
from slime_events.conductor.accept import Judge
from slime_events.conductor.decide import decide, is_broken, is_complete, prompts_to_draw, waits_for
from slime_events.conductor.draw import requests_for, training_requests
from slime_events.conductor.evaluate import evals_due
from slime_events.conductor.plan import Plan
from slime_events.conductor.prompts import PromptFeed
from slime_events.conductor.seal import Normalise
from slime_events.state.apply import apply
from slime_events.state.run import FOLD, RunPhase, RunState, state_digest
from slime_events.worker import Worker
from storage.follow import Follower
from storage.log import Append, Fence, Recorded, append_all, once

log = logging.getLogger(__name__)

Offload = Callable[[Event], Awaitable[Event]]
"""Puts an event's large arrays into the blob store."""

NOTHING_TO_DECIDE = (RolloutProgressed, ArchiveSealed, WorkerJoined)
"""Most events of a run are these; they change no decision that the end of their rollout will not change too."""
TICK_S = 0.5


class Conductor:
    """The shell around `slime_events.conductor.decide`.

    deadline_s: seconds without progress after which the run is failed with what it waited for.
    """

    def __init__(
        self,
        worker: Worker,
        plan: Plan,
        feed: PromptFeed,
        judge: Judge,
        normalise: Normalise,
        offload: Offload,
        *,
        deadline_s: float,
    ) -> None:
        self._worker, self._plan, self._feed = worker, plan, feed
        self._judge, self._normalise, self._offload = judge, normalise, offload
        self._deadline_s = deadline_s
        self._said = 0
        self._stop_asked = False
        self._begun = False
        self._mark = -1
        self._moved_at = self._looked_at = time.monotonic()
        self.state = RunState(run=worker.log.run)

    def stop(self) -> None:
        """End the run cleanly at the next look at the log: everything acked stays, `resume` goes on from it."""
        self._stop_asked = True

    async def run(self) -> RunPhase:
        """Conduct until the run is finished or failed."""
        async with Follower(self._worker.log) as follower:
            while not follower.caught_up or self.state.phase in (RunPhase.NEW, RunPhase.RUNNING):
                due = self._fold(await follower.next(wait_s=TICK_S))
                if not follower.caught_up or self.state.events < self._said or not (due or self._tick()):
                    continue
                try:
                    await self._turn()
                except Conflict as conflict:
                    log.warning("lost a race and looks again: %s", conflict)
                except SlimeEventsError as error:
                    await self._fail(str(error), waited_for=None)
                    raise
        return self.state.phase

    def _fold(self, events: list[Recorded]) -> bool:
        """Whether there may be something to decide now."""
        due = False
        for recorded in events:
            apply(self.state, recorded)
            due = due or not isinstance(recorded.envelope.event, NOTHING_TO_DECIDE)
        return due

    def _tick(self) -> bool:
        return self._stop_asked or time.monotonic() - self._looked_at >= TICK_S

    async def _turn(self) -> None:
        state, plan = self.state, self._plan
        self._looked_at = time.monotonic()
        if state.phase is not RunPhase.RUNNING:
            return
        if is_complete(state, plan) or self._stop_asked:
            await self._finish()
            return
        reason = is_broken(state, plan) or self._stalled()
        if reason:
            await self._fail(reason, waited_for=waits_for(state, plan))
            return
        events = decide(state, plan, self._judge, self._normalise)
        events += self._draw() + self._begin_evals()
        if not self._begun:
            events += self._first_words()
        if events:
            self._said = await self._append(events)
        self._begun = True

    async def _append(self, events: list[Event]) -> int:
        appends = []
        for event in events:
            envelope = self._worker.enclose(await self._offload(event))
            appends.append(Append(envelope) if getattr(event, "attempt", 0) else once(envelope))
        return max(await append_all(self._worker.log, appends))

    def _draw(self) -> list[Event]:
        count = prompts_to_draw(self.state, self._plan)
        if not count:
            return []
        events: list[Event] = []
        for prompt in self._feed.take(self.state.cursors, count):
            events.append(prompt)
            if isinstance(prompt, PromptSubmitted):
                events += training_requests(prompt.group, prompt.tokens, self.state, self._plan)
        return events

    def _begin_evals(self) -> list[Event]:
        due = evals_due(self.state, self._plan)
        return [event for name, version in due for event in self._evaluation(name, version)]

    def _first_words(self) -> list[Event]:
        """What a conductor before this one may have said in part or not at all; what it did say is the same event."""
        events: list[Event] = list(self._feed.malformed())
        for evaluation in self.state.evals.values():
            events += self._evaluation(evaluation.dataset, evaluation.version)
        return events

    def _evaluation(self, name: str, version: int) -> list[Event]:
        plan = self._plan
        events: list[Event] = list(self._feed.evaluation(name, version))
        prompts = [event for event in events if isinstance(event, PromptSubmitted)]
        if not prompts:
            raise DataError(f"evaluation set {name!r} has no usable prompt: {len(events)} lines were refused")
        for prompt in prompts:
            events += requests_for(
                prompt.group,
                prompt.tokens,
                samples=plan.eval_samples,
                sampling=plan.eval_sampling or plan.sampling,
                seed=plan.seed,
                min_version=version,
                purpose=Purpose.EVAL,
            )
        return events

    def _stalled(self) -> str | None:
        if self.state.moved != self._mark:
            self._mark, self._moved_at = self.state.moved, time.monotonic()
        idle = time.monotonic() - self._moved_at
        if idle < self._deadline_s:
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
        await self._worker.say_again(event, Fence(every_event(state.run), state.events))

    async def _fail(self, reason: str, waited_for: str | None) -> None:
        log.error("the run failed: %s", reason)
        event = RunFailed(role="conductor", reason=reason, waited_for=waited_for, at_events=self.state.events)
        self._said = await self._worker.say_again(event)
