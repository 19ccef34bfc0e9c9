"""`Replay`: one pass over a log that repeats every decision and compares it with the recorded one.

`docs/decisions/0012-when-a-replay-is-equal.md` has the rule and its limits.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from schemas.errors import DataError, InvalidValue
from schemas.event import Event, Purpose, type_of
from schemas.ids import group_of
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted, RolloutProgressed
from schemas.runs import FinishReason, RunFailed, RunFinished, RunResumed, RunStarted
from schemas.workers import WorkerJoined
from slime_events.analysis.replay.cycles import Cycle, Cycles
from slime_events.analysis.replay.equality import about, is_decision
from slime_events.analysis.replay.feeds import make_feed
from slime_events.analysis.replay.report import ReplayReport, difference
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.toml import settings_from
from slime_events.core.run.run_reader import OpenedRun
from slime_events.core.state.group import GroupPhase, GroupState
from slime_events.core.state.run import RunState
from slime_events.loop.conductor.accept import GroupFilter, has_ended
from slime_events.loop.conductor.cycle import Feed, Policy, recovery_events, run_cycle
from slime_events.loop.conductor.decide import evals_completed, is_broken, is_complete
from slime_events.loop.conductor.plan import at_boundary
from slime_events.model.verify import fold
from slime_events.plugins.filters.decide import FilterDecision
from slime_events.plugins.texts import Texts
from storage.log import Recorded

CONDUCTOR = "conductor"
OF_ONE_SAMPLE = (RolloutProgressed, RolloutCompleted, RewardAssigned)
"""Most events of a run. They cause a decision only if they end their group, or if a batch waits for it."""
Changes = Mapping[str, Mapping[str, Any]]
"""Values by component and field."""
CACHED_VERDICTS = 4096
"""Number of groups whose verdicts are cached."""


def _cached(group_filter: GroupFilter) -> GroupFilter:
    """Return the filter with a cache: a replay calls it for one group at many positions."""
    last: dict[str, tuple[tuple[Any, ...], FilterDecision]] = {}

    def decide(group: GroupState) -> FilterDecision:
        content = tuple((s.sample, s.reward, s.length, s.digest) for s in group.samples.values())
        if group.group not in last or last[group.group][0] != content:
            last[group.group] = (content, group_filter(group))
            if len(last) > CACHED_VERDICTS:
                last.pop(next(iter(last)))
        return last[group.group][1]

    return decide


def settings_under(values: Mapping[str, Mapping[str, Any]], changes: Changes) -> TrainSettings:
    """Return the settings in events, overridden by `changes`. Raises InvalidValue."""
    return settings_from({part: {**values.get(part, {}), **changes.get(part, {})} for part in {*values, *changes}})


class Replay:
    """One replay of a log.

    feed: prompts as the run's conductor got them. changes: settings that override the run's own. every: continue after
    a difference, from the recorded decision; otherwise compare nothing after it. policy: for a run whose run.started
    has no settings.
    """

    def __init__(
        self, run: str, feed: Feed, changes: Changes | None = None, *, every: bool = False, policy: Policy | None = None
    ) -> None:
        self.report = ReplayReport(run=run)
        self._feed, self._changes, self._every = feed, changes or {}, every
        self._values: dict[str, dict[str, Any]] = {}
        self._policy = policy
        self._state = RunState(run=run)
        self._texts = policy.texts if policy is not None and policy.texts is not None else Texts(until_trained=True)
        self._cycles = Cycles()
        self._begins = True  # a conductor may have started since the last decision
        self._quiet = False  # no decision was possible at the last position
        self._producer = ""
        self._why = ""

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to compare."""
        return bool(self.report.differences) and not self._every

    def apply(self, recorded: Recorded) -> None:
        """Take in the next event. Raises LogDamaged, InvalidValue, PlugPointError."""
        event, producer = recorded.envelope.event, recorded.envelope.producer
        self.report.events += 1
        if isinstance(event, RunStarted | RunResumed):
            self._take_settings(event)
        if is_decision(event) and self._policy is not None:
            self._compare(recorded, event, producer)
            self._producer, self._begins = producer, False
        elif isinstance(event, RunFinished | RunFailed):
            self._compare_end(recorded, event)
        fold(self._state, recorded)
        self._texts.apply(event, self._state)
        self._feed.observe(recorded)
        if isinstance(event, RunStarted | RunResumed) or (isinstance(event, WorkerJoined) and event.role == CONDUCTOR):
            self._begins = True
        if not self._changes_nothing(event):
            self._decide_here()

    def _take_settings(self, event: RunStarted | RunResumed) -> None:
        """Apply the event's settings from here on. Raises InvalidValue for a learner, which has no conductor."""
        if isinstance(event, RunStarted) and event.branched is not None and event.branched.follows:
            raise InvalidValue(
                f"run {self.report.run} trains on the rollouts of {event.branched.run}, whose conductor decided. "
                f"Replay that run: {event.branched.where}"
            )
        for part, fields in event.settings.items():
            self._values.setdefault(part, {}).update(fields)
        if self._values:
            policy = Policy.of(settings_under(self._values, self._changes), self._texts)
            self._policy = policy._replace(group_filter=_cached(policy.group_filter))

    def _changes_nothing(self, event: Event) -> bool:
        """Return whether there is no decision before `event`, and therefore none after it."""
        if not self._quiet or self._policy is None or not isinstance(event, OF_ONE_SAMPLE):
            return False
        state, plan = self._state, self._policy.plan
        if len(state.accepted) >= plan.groups and not at_boundary(state.next_step, state, plan):
            return False
        group = state.groups.get(group_of(event.sample))
        if group is None or group.phase is not GroupPhase.REQUESTED or not has_ended(group, plan):
            return True
        if group.purpose is Purpose.EVAL:
            return not evals_completed(state, plan)
        return plan.in_prompt_order and not has_ended(state.in_phase(GroupPhase.REQUESTED)[0], plan)

    def _decide_here(self) -> None:
        """Decide as a conductor would here: one that has appended a whole cycle, or one that has just started."""
        if self._policy is None or not (self._cycles.open or self._begins):
            return
        decided, recovered = self._decide(), self._recovery_events() if self._begins else []
        self._quiet = not decided and not recovered
        at, producer = self._state.position, self._producer or None
        self._cycles.add(Cycle(decided, at, not_by=None if self._cycles.open else producer))
        self._cycles.add(Cycle(recovered, at, not_by=producer))

    def _decide(self) -> list[Event]:
        state, policy, self._why = self._state, self._policy, ""
        assert policy is not None
        if is_broken(state, policy.plan) or is_complete(state, policy.plan):
            return []
        try:
            decides = (policy.group_filter, policy.normalise, self._feed, policy.post_process)
            events = run_cycle(state, policy.plan, *decides)
        except DataError as error:
            self._why = str(error)
            return []
        return [event for event in events if is_decision(event)]

    def _recovery_events(self) -> list[Event]:
        assert self._policy is not None
        try:
            events = recovery_events(self._state, self._policy.plan, self._feed)
        except DataError:
            return []
        return [event for event in events if is_decision(event) and not self._is_logged(event)]

    def _is_logged(self, event: Event) -> bool:
        """Return whether the log already has an event that a new conductor appends again."""
        group = self._state.groups.get(getattr(event, "group", ""))
        return group is not None and (isinstance(event, PromptSubmitted) or event.entity() in group.samples)

    def _compare(self, recorded: Recorded, event: Event, producer: str) -> None:
        self.report.decisions[type_of(event)] += 1
        if self.is_over or self._cycles.takes(event, producer):
            return
        if producer != self._producer:  # another conductor, whose start is not in the log
            self._begins = True
            self._decide_here()
            if self._cycles.takes(event, producer):
                return
        self._differs(recorded, event, producer)

    def _differs(self, recorded: Recorded, event: Event, producer: str) -> None:
        near = self._cycles.nearest(event)
        decided, at = (near.next, near.at) if near else (None, self._state.position)
        self._note(recorded, decided, at)
        if decided is not None and about(decided) == about(event):
            self._cycles.begin_anew(event)
            return
        self._cycles.begin_anew()
        self._decide_here()
        if not self._cycles.takes(event, producer):
            self._cycles.begin_anew()

    def _note(self, recorded: Recorded, decided: Event | None, at: int) -> None:
        assert self._policy is not None
        self.report.differences.append(difference(recorded, decided, self._state, self._policy.plan, at, self._why))

    def _compare_end(self, recorded: Recorded, event: RunFinished | RunFailed) -> None:
        """Compare the run's end if it follows from the state. A stall or a requested stop does not."""
        if self._policy is None or self.is_over:
            return
        state, plan = self._state, self._policy.plan
        broken = is_broken(state, plan)
        if isinstance(event, RunFailed) and event.role == CONDUCTOR and broken and not event.reason.startswith(broken):
            self._note(recorded, msgspec.structs.replace(event, reason=broken), state.position)
        elif isinstance(event, RunFinished) and event.reason is FinishReason.ALL_STEPS and not is_complete(state, plan):
            self._note(recorded, None, state.position)


async def replay(
    opened: OpenedRun, changes: Changes | None = None, *, every: bool = False, recorded_prompts: bool = False
) -> ReplayReport:
    """Compare every decision with the recorded one, up to the first difference or (every) to the end.

    changes: settings that override the run's own. Raises LogDamaged, InvalidValue, PlugPointError.
    """
    feed, prompts = await make_feed(opened.log, opened.settings, recorded=recorded_prompts)
    replaying = Replay(opened.run, feed, changes, every=every)
    replaying.report.prompts = prompts
    async for recorded in opened.log.read():
        replaying.apply(recorded)
        if replaying.is_over:
            break
    return replaying.report
