"""`Ledger`: the samples, groups, batches, versions and rules that checks look up. It judges nothing."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from schemas.batches import BatchSealed
from schemas.event import Event, Purpose
from schemas.groups import GroupAccepted, GroupRejected
from schemas.ids import place_of
from schemas.prompts import PromptSubmitted
from schemas.recorded import Recalled
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import (
    RolloutCompleted,
    RolloutFailed,
    RolloutProgressed,
    RolloutRequested,
    RolloutSuspended,
    WeightSpan,
)
from schemas.runs import Branched, RunFailed, RunFinished, RunResumed, RunStarted
from schemas.steps import StepCommitted
from schemas.weights import WeightsPublished
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.settings import TrainSettings
from slime_events.loop.conductor.plan import Plan, make_plan
from storage.log import Recorded


@dataclass(frozen=True, slots=True)
class Rules:
    """plan, algorithm: None where the log does not say (`run.started` without settings, or with those of a version
    that this one cannot read); what depends on them is then counted, not judged.
    """

    plan: Plan | None = None
    algorithm: AlgorithmSettings | None = None


def rules_of(settings: dict[str, Any]) -> Rules:
    """The rules in the settings of a `run.started`."""
    if not settings:
        return Rules()
    try:
        given = msgspec.convert(settings, TrainSettings)
        return Rules(make_plan(given.rollout, given.evaluation, given.trainer), given.algorithm)
    except (msgspec.ValidationError, ValueError):
        return Rules()


class Fate(enum.StrEnum):
    """Where a rollout stands."""

    WAITING = "waiting"
    RUNNING = "running"
    SUSPENDED = "suspended"
    FAILED = "failed"
    COMPLETED = "completed"


@dataclass(slots=True)
class SampleFacts:
    """One sample. min_version, max_version: the weights that were asked for last. ended: position of its
    rollout.completed. reward: as assigned; graded: position of its outcome. rollout: the sample that was asked for,
    where this is a further one.
    """

    sample: str
    group: GroupFacts
    attempt: int
    prompt_length: int
    min_version: int
    rollout: str = ""
    max_version: int | None = None
    fate: Fate = Fate.WAITING
    ended: int = 0
    length: int = 0
    oldest: int | None = None
    newest: int | None = None
    digest: str = ""
    reward: float | None = None
    graded: int = 0

    def saw(self, spans: tuple[WeightSpan, ...]) -> None:
        """Widen the range of weight versions over its tokens."""
        for span in spans:
            version = span.version
            self.oldest = version if self.oldest is None else min(self.oldest, version)
            self.newest = version if self.newest is None else max(self.newest, version)


@dataclass(slots=True)
class GroupFacts:
    """One group. version: of the weights when it was first asked for (an evaluation's: that it is of). order: the
    how-manieth training group asked for. decided: position of its verdict. step: whose batch has it. recalled: of one
    whose rollouts are those of a recorded group, named by source and key.
    """

    group: str
    position: int
    purpose: Purpose
    dataset: str
    version: int
    samples: dict[str, SampleFacts] = field(default_factory=dict)
    order: int = -1
    decided: int = 0
    accepted: bool = False
    step: int | None = None
    recalled: Recalled | None = None
    recorded: tuple[str, str] = ("", "")

    @property
    def oldest(self) -> int:
        """The oldest weight version in it; a sample without tokens counts as the version it was asked for with."""
        versions = (s.min_version if s.oldest is None else s.oldest for s in self.samples.values())
        return min(versions, default=self.version)


@dataclass(slots=True)
class Ledger:
    """rules: those in force, of the settings in run.started as run.resumed changed them; those given where it has none.
    position: of the last event. ended: position of the run's end, 0 while it is on. branched: where it goes on from,
    None for a run that begins with its base checkpoint. batches, steps: of its own. recalls: some of its rollouts are
    recorded ones.
    """

    run: str
    rules: Rules = field(default_factory=Rules)
    settings: dict[str, Any] = field(default_factory=dict)
    position: int = 0
    ended: int = 0
    branched: Branched | None = None
    incarnation: int = 0
    groups: dict[str, GroupFacts] = field(default_factory=dict)
    samples: dict[str, SampleFacts] = field(default_factory=dict)
    asked: int = 0
    batches: dict[int, BatchSealed] = field(default_factory=dict)
    steps: dict[int, StepCommitted] = field(default_factory=dict)
    published: dict[int, WeightsPublished] = field(default_factory=dict)
    recalls: bool = False

    def apply(self, recorded: Recorded) -> None:
        """Take one event in. What does not fit is left to the checks."""
        self.position = recorded.position
        event = recorded.envelope.event
        note = _NOTES.get(type(event))
        if note is not None:
            note(self, event, recorded.position)

    @property
    def first(self) -> int:
        """The version that the run begins with."""
        return 0 if self.branched is None else self.branched.version

    @property
    def follows(self) -> bool:
        """Whether its batches are of another run's rollouts."""
        return self.branched is not None and self.branched.follows

    @property
    def steps_sealed(self) -> int:
        """Steps that have a batch, those before a branch's beginning included: the next batch is of this step."""
        return self.first + len(self.batches)

    @property
    def steps_committed(self) -> int:
        """Steps, those before a branch's beginning included."""
        return self.first + len(self.steps)

    @property
    def has_all_steps(self) -> bool:
        """Whether as many steps are committed as the run was to have."""
        plan = self.rules.plan
        return plan is not None and self.steps_committed >= plan.steps


def _started(ledger: Ledger, event: RunStarted, position: int) -> None:
    ledger.branched = event.branched
    if event.settings:
        ledger.settings, ledger.rules = event.settings, rules_of(event.settings)


def _resumed(ledger: Ledger, event: RunResumed, position: int) -> None:
    ledger.ended, ledger.incarnation = 0, event.incarnation
    if ledger.settings and event.settings:
        changed = {part: {**ledger.settings.get(part, {}), **fields} for part, fields in event.settings.items()}
        ledger.settings = {**ledger.settings, **changed}
        ledger.rules = rules_of(ledger.settings)


def _ended(ledger: Ledger, event: RunFinished | RunFailed, position: int) -> None:
    ledger.ended = position


def _prompt(ledger: Ledger, event: PromptSubmitted, position: int) -> None:
    version = -1 if event.version is None else event.version
    group = GroupFacts(event.group, position, event.purpose, event.dataset, version)
    if event.recalled is not None:
        group.recalled, group.recorded = event.recalled, (event.source.path, event.source.key)
        ledger.recalls = True
    ledger.groups.setdefault(event.group, group)


def _requested(ledger: Ledger, event: RolloutRequested, position: int) -> None:
    group = ledger.groups.get(event.group)
    if group is None:
        return
    if not group.samples and group.purpose is Purpose.TRAIN:
        group.version, group.order = event.min_version, ledger.asked
        ledger.asked += 1
    sample = group.samples.get(event.sample)
    if sample is None:
        sample = SampleFacts(event.sample, group, event.attempt, event.prompt.n, event.min_version)
        group.samples[event.sample] = ledger.samples[event.sample] = sample
    sample.attempt, sample.fate = event.attempt, Fate.WAITING
    sample.min_version, sample.max_version = event.min_version, event.max_version


def _progressed(ledger: Ledger, event: RolloutProgressed, position: int) -> None:
    sample = ledger.samples.get(event.sample)
    if sample is not None:
        sample.fate, sample.length = Fate.RUNNING, event.start + event.tokens.n
        sample.saw(event.spans)


def _completed(ledger: Ledger, event: RolloutCompleted, position: int) -> None:
    sample = ledger.samples.get(event.sample) or _sibling(ledger, event)
    if sample is not None:
        sample.prompt_length = sample.prompt_length if event.prompt is None else event.prompt.n
        sample.fate, sample.ended = Fate.COMPLETED, position
        sample.length, sample.digest = event.length, event.digest
        sample.saw(event.spans)


def _sibling(ledger: Ledger, event: RolloutCompleted) -> SampleFacts | None:
    """A further sample of a rollout joins its group, at its place."""
    asked_for = ledger.samples.get(event.rollout)
    if asked_for is None:
        return None
    group, prompt_length = asked_for.group, asked_for.prompt_length
    sample = SampleFacts(event.sample, group, event.attempt, prompt_length, asked_for.min_version, event.rollout)
    ledger.samples[event.sample] = group.samples[event.sample] = sample
    group.samples = dict(sorted(group.samples.items(), key=lambda item: place_of(item[0])))
    return sample


def _suspended(ledger: Ledger, event: RolloutSuspended, position: int) -> None:
    sample = ledger.samples.get(event.sample)
    if sample is not None:
        sample.fate = Fate.SUSPENDED


def _failed(ledger: Ledger, event: RolloutFailed, position: int) -> None:
    sample = ledger.samples.get(event.sample)
    if sample is not None:
        sample.fate = Fate.FAILED


def _rewarded(ledger: Ledger, event: RewardAssigned | RewardFailed, position: int) -> None:
    sample = ledger.samples.get(event.sample)
    if sample is not None and not sample.graded:
        sample.graded = position
        sample.reward = event.value if isinstance(event, RewardAssigned) else None


def _decided(ledger: Ledger, event: GroupAccepted | GroupRejected, position: int) -> None:
    group = ledger.groups.get(event.group)
    if group is not None and not group.decided:
        group.decided, group.accepted = position, isinstance(event, GroupAccepted)


def _sealed(ledger: Ledger, event: BatchSealed, position: int) -> None:
    ledger.batches.setdefault(event.step, event)
    for name in event.groups:
        group = ledger.groups.get(name)
        if group is not None and group.step is None:
            group.step = event.step


def _committed(ledger: Ledger, event: StepCommitted, position: int) -> None:
    ledger.steps.setdefault(event.step, event)


def _published(ledger: Ledger, event: WeightsPublished, position: int) -> None:
    ledger.published.setdefault(event.version, event)


_NOTES: dict[type[Event], Callable[[Ledger, Any, int], None]] = {
    RunStarted: _started,
    RunResumed: _resumed,
    RunFinished: _ended,
    RunFailed: _ended,
    PromptSubmitted: _prompt,
    RolloutRequested: _requested,
    RolloutProgressed: _progressed,
    RolloutCompleted: _completed,
    RolloutSuspended: _suspended,
    RolloutFailed: _failed,
    RewardAssigned: _rewarded,
    RewardFailed: _rewarded,
    GroupAccepted: _decided,
    GroupRejected: _decided,
    BatchSealed: _sealed,
    StepCommitted: _committed,
    WeightsPublished: _published,
}
