"""`Replay`: one pass over a log in which every decision is made again and compared with what was said.

fact -> fold -> what would be decided here?  |  decision -> is it what one of the possible turns says next? -> fold

`docs/decisions/0012-when-a-replay-is-equal.md` has the rule and what it cannot see.
"""

from __future__ import annotations

from typing import Any

import msgspec

from schemas.errors import DataError, InvalidValue
from schemas.event import Event, Purpose
from schemas.ids import group_of
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted, RolloutProgressed
from schemas.runs import FinishReason, RunFailed, RunFinished, RunResumed, RunStarted
from schemas.workers import WorkerJoined
from slime_events.analysis.model.verify import fold
from slime_events.analysis.replay.cycles import Turn, Turns
from slime_events.analysis.replay.decider import Changes, Decider, settings_under
from slime_events.analysis.replay.difference import difference
from slime_events.analysis.replay.equality import about, is_decision
from slime_events.analysis.replay.report import ReplayReport
from slime_events.core.state.group import GroupPhase
from slime_events.core.state.run import RunState
from slime_events.loop.conductor.accept import has_ended
from slime_events.loop.conductor.cycle import Feed, recovery_events, run_cycle
from slime_events.loop.conductor.decide import evals_completed, is_broken, is_complete
from slime_events.loop.conductor.plan import at_boundary
from storage.log import Recorded

CONDUCTOR = "conductor"
OF_ONE_SAMPLE = (RolloutProgressed, RolloutCompleted, RewardAssigned)
"""Most events of a run. They bring a decision only where their group has ended by them, or a batch waits for it."""


class Replay:
    """feed: prompts as the run's conductor got them. changes: settings to decide by in place of those in force.
    every: go on after a difference, with what was recorded; else nothing is compared after the first. decider: of a
    run whose run.started has no settings.
    """

    def __init__(
        self,
        run: str,
        feed: Feed,
        changes: Changes | None = None,
        *,
        every: bool = False,
        decider: Decider | None = None,
    ) -> None:
        self.report = ReplayReport(run=run)
        self._feed, self._changes, self._every = feed, changes or {}, every
        self._values: dict[str, dict[str, Any]] = {}
        self._decider = decider
        self._state = RunState(run=run)
        self._turns = Turns()
        self._begins = True  # a conductor may have started since the last decision
        self._quiet = False  # nothing would have been decided at the last look
        self._speaker = ""
        self._why = ""

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to find out."""
        return bool(self.report.differences) and not self._every

    def apply(self, recorded: Recorded) -> None:
        """Take in the next event. Raises LogDamaged, InvalidValue, PlugPointError."""
        event, producer = recorded.envelope.event, recorded.envelope.producer
        self.report.events += 1
        if isinstance(event, RunStarted | RunResumed):
            self._take_settings(event)
        if is_decision(event) and self._decider is not None:
            self._compare(recorded, event, producer)
            self._speaker, self._begins = producer, False
        elif isinstance(event, RunFinished | RunFailed):
            self._compare_end(recorded, event)
        fold(self._state, recorded)
        self._feed.observe(recorded)
        if isinstance(event, RunStarted | RunResumed) or (isinstance(event, WorkerJoined) and event.role == CONDUCTOR):
            self._begins = True
        if not self._changes_nothing(event):
            self._look()

    def _take_settings(self, event: RunStarted | RunResumed) -> None:
        """What is decided by from here on. Raises InvalidValue for a learner, which has no conductor."""
        if isinstance(event, RunStarted) and event.branched is not None and event.branched.follows:
            raise InvalidValue(
                f"run {self.report.run} trains on the rollouts of {event.branched.run}, whose conductor has decided: "
                f"replay that one ({event.branched.where})"
            )
        for part, fields in event.settings.items():
            self._values.setdefault(part, {}).update(fields)
        if self._values:
            self._decider = Decider.of(settings_under(self._values, self._changes))

    def _changes_nothing(self, event: Event) -> bool:
        """Whether what would have been decided before `event`, namely nothing, is so after it."""
        if not self._quiet or self._decider is None or not isinstance(event, OF_ONE_SAMPLE):
            return False
        state, plan = self._state, self._decider.plan
        if len(state.accepted) >= plan.groups and not at_boundary(state.next_step, state, plan):
            return False
        group = state.groups.get(group_of(event.sample))
        if group is None or group.phase is not GroupPhase.REQUESTED or not has_ended(group, plan):
            return True
        if group.purpose is Purpose.EVAL:
            return not evals_completed(state, plan)
        return plan.in_prompt_order and not has_ended(state.in_phase(GroupPhase.REQUESTED)[0], plan)

    def _look(self) -> None:
        """Decide as a conductor would that looks at the log here: one that has said all of a turn, or a new one."""
        if self._decider is None or not (self._turns.open or self._begins):
            return
        decided, words = self._decide(), self._recovery_events() if self._begins else []
        self._quiet = not decided and not words
        at, speaker = self._state.events, self._speaker or None
        self._turns.add(Turn(decided, at, other_than=None if self._turns.open else speaker))
        self._turns.add(Turn(words, at, other_than=speaker))

    def _decide(self) -> list[Event]:
        state, decider, self._why = self._state, self._decider, ""
        assert decider is not None
        if is_broken(state, decider.plan) or is_complete(state, decider.plan):
            return []
        try:
            events = run_cycle(state, decider.plan, decider.judge, decider.normalise, self._feed)
        except DataError as error:
            self._why = str(error)
            return []
        return [event for event in events if is_decision(event)]

    def _recovery_events(self) -> list[Event]:
        assert self._decider is not None
        try:
            events = recovery_events(self._state, self._decider.plan, self._feed)
        except DataError:
            return []
        return [event for event in events if is_decision(event) and not self._is_said(event)]

    def _is_said(self, event: Event) -> bool:
        """Of what a new conductor says again: whether the log has it, so that it is no new event."""
        group = self._state.groups.get(getattr(event, "group", ""))
        return group is not None and (isinstance(event, PromptSubmitted) or event.entity() in group.samples)

    def _compare(self, recorded: Recorded, event: Event, producer: str) -> None:
        self.report.count(event)
        if self.is_over or self._turns.takes(event, producer):
            return
        if producer != self._speaker:  # another conductor, of which the log did not say that it came
            self._begins = True
            self._look()
            if self._turns.takes(event, producer):
                return
        self._differs(recorded, event, producer)

    def _differs(self, recorded: Recorded, event: Event, producer: str) -> None:
        near = self._turns.nearest(event)
        decided = near.next if near else None
        at = near.at if near else self._state.events
        self._note(event, decided, position=recorded.position, at=at)
        if decided is not None and about(decided) == about(event):
            self._turns.begin_anew(event)
            return
        self._turns.begin_anew()
        self._look()
        if not self._turns.takes(event, producer):
            self._turns.begin_anew()

    def _note(self, event: Event, decided: Event | None, *, position: int, at: int) -> None:
        assert self._decider is not None
        plan = self._decider.plan
        found = difference(event, decided, self._state, plan, position=position, at=at, why=self._why)
        self.report.differences.append(found)

    def _compare_end(self, recorded: Recorded, event: RunFinished | RunFailed) -> None:
        """An end that follows from the state. That a run stood still too long, or was asked to stop, does not."""
        if self._decider is None or self.is_over:
            return
        state, plan = self._state, self._decider.plan
        broken = is_broken(state, plan)
        if isinstance(event, RunFailed) and event.role == CONDUCTOR and broken and not event.reason.startswith(broken):
            now: Event | None = msgspec.structs.replace(event, reason=broken)
        elif isinstance(event, RunFinished) and event.reason is FinishReason.ALL_STEPS and not is_complete(state, plan):
            now = None
        else:
            return
        self._note(event, now, position=recorded.position, at=state.events)
