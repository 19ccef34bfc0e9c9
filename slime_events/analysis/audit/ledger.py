"""`Ledger`: the samples, groups, batches, versions and rules that checks look up. It judges nothing."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from schemas.batches import BatchSealed
from schemas.event import Purpose
from schemas.groups import GroupAccepted, GroupRejected
from schemas.ids import order_in_group
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
from schemas.trainers import Fidelity, TrainerRestored
from schemas.weights import WeightsPublished
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.settings import TrainSettings
from slime_events.loop.conductor.plan import Plan, make_plan
from storage.log import Recorded


class Rules(NamedTuple):
    """plan, algorithm: None where `run.started` has no settings, or settings of a version that this one cannot read.
    What depends on them is then counted, not judged.
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
class SampleEntry:
    """One sample. min_version, max_version: the weights that the last request allows. ended: position of its
    rollout.completed. reward: as assigned; graded: position of that event, or of the failure. rollout: of a further
    sample of a rollout, the sample that was requested.
    """

    sample: str
    group: GroupEntry
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

    def widen(self, spans: tuple[WeightSpan, ...]) -> None:
        """Widen the range of weight versions by those of these tokens."""
        for span in spans:
            version = span.version
            self.oldest = version if self.oldest is None else min(self.oldest, version)
            self.newest = version if self.newest is None else max(self.newest, version)


@dataclass(slots=True)
class GroupEntry:
    """One group. version: of the weights at its first request (of an evaluation: the version that it evaluates). order:
    index among requested training groups. decided: position of its verdict. step: whose batch has it. recalled: of a
    group that reuses recorded rollouts; recorded: the source and key of the group that they are from.
    """

    group: str
    purpose: Purpose
    version: int
    samples: dict[str, SampleEntry] = field(default_factory=dict)
    order: int = -1
    decided: int = 0
    accepted: bool = False
    step: int | None = None
    recalled: Recalled | None = None
    recorded: tuple[str, str] = ("", "")

    @property
    def oldest(self) -> int:
        """The oldest weight version in it; a sample without tokens counts as the version of its request."""
        versions = (s.min_version if s.oldest is None else s.oldest for s in self.samples.values())
        return min(versions, default=self.version)


@dataclass(slots=True)
class Ledger:
    """rules: from the settings in run.started as run.resumed changed them; the given ones where it has no settings.
    position: of the last event. foreign: records before it that are none; passed: all so far. ended: position of the
    run's end, 0 while it is on. branched: where it goes on from, None for a run that begins with its base checkpoint.
    asked: requested training groups. batches, steps: its own. restored: by trainers that took over; is_approximate:
    whether one of them had not the committed optimizer state. recalls: whether it reuses recorded rollouts.
    """

    run: str
    rules: Rules = field(default_factory=Rules)
    settings: dict[str, Any] = field(default_factory=dict)
    position: int = 0
    foreign: int = 0
    passed: int = 0
    ended: int = 0
    branched: Branched | None = None
    incarnation: int = 0
    groups: dict[str, GroupEntry] = field(default_factory=dict)
    samples: dict[str, SampleEntry] = field(default_factory=dict)
    asked: int = 0
    batches: dict[int, BatchSealed] = field(default_factory=dict)
    steps: dict[int, StepCommitted] = field(default_factory=dict)
    published: dict[int, WeightsPublished] = field(default_factory=dict)
    restored: dict[int, list[TrainerRestored]] = field(default_factory=dict)
    is_approximate: bool = False
    recalls: bool = False

    def apply(self, recorded: Recorded) -> None:
        """Take one event in. What does not fit is left to the checks."""
        self.position, self.foreign = recorded.position, self.passed
        event = recorded.envelope.event  # the most frequent first
        match event:
            case RolloutProgressed() if sample := self.samples.get(event.sample):
                sample.fate, sample.length = Fate.RUNNING, event.start + event.tokens.n
                sample.widen(event.spans)
            case RolloutCompleted():
                self._completed(event)
            case RolloutRequested() if group := self._group(event):
                self._requested(event, group)
            case RewardAssigned() | RewardFailed() if (sample := self.samples.get(event.sample)) and not sample.graded:
                sample.graded = self.position
                sample.reward = event.value if isinstance(event, RewardAssigned) else None
            case PromptSubmitted():
                self._submitted(event)
            case GroupAccepted() | GroupRejected() if (group := self.groups.get(event.group)) and not group.decided:
                group.decided, group.accepted = self.position, isinstance(event, GroupAccepted)
            case RolloutSuspended() if sample := self.samples.get(event.sample):
                sample.fate = Fate.SUSPENDED
            case RolloutFailed() if sample := self.samples.get(event.sample):
                sample.fate = Fate.FAILED
            case BatchSealed():
                self.batches.setdefault(event.step, event)
                for one in [self.groups[name] for name in event.groups if name in self.groups]:
                    one.step = event.step if one.step is None else one.step
            case StepCommitted():
                self.steps.setdefault(event.step, event)
            case WeightsPublished():
                self.published.setdefault(event.version, event)
            case TrainerRestored():
                self.restored.setdefault(event.version, []).append(event)
                self.is_approximate |= event.optimizer is Fidelity.APPROXIMATE
            case RunStarted():
                self.branched = event.branched
                self._set(event.settings)
            case RunResumed():
                self.ended, self.incarnation = 0, event.incarnation
                changed = {part: self.settings.get(part, {}) | fields for part, fields in event.settings.items()}
                self._set(self.settings and self.settings | changed)
            case RunFinished() | RunFailed():
                self.ended = self.position

    def digest_of(self, version: int) -> str | None:
        """Of its weights; None before they were committed."""
        step, published = self.steps.get(version - 1), self.published.get(version)
        return step.weights_digest if step else published.digest if published else None

    @property
    def first(self) -> int:
        """The version that the run begins with."""
        return 0 if self.branched is None else self.branched.version

    @property
    def follows(self) -> bool:
        """Whether its batches are of another run's rollouts."""
        return self.branched is not None and self.branched.follows

    @property
    def is_driven(self) -> bool:
        """Whether a client's commands make its steps."""
        return bool(self.settings.get("run", {}).get("tinker"))

    @property
    def steps_sealed(self) -> int:
        """Steps that have a batch, with those before a branch: the next batch is of this step."""
        return self.first + len(self.batches)

    @property
    def steps_committed(self) -> int:
        """Steps, with those before a branch."""
        return self.first + len(self.steps)

    def tokens_of(self, batch: BatchSealed) -> int:
        """Tokens of prompts and responses of a batch's samples, as far as the log holds them."""
        samples = [self.samples[name] for name in batch.samples if name in self.samples]
        return sum(sample.prompt_length + sample.length for sample in samples)

    def _set(self, settings: dict[str, Any]) -> None:
        if settings:
            self.settings, self.rules = settings, rules_of(settings)

    def _submitted(self, event: PromptSubmitted) -> None:
        version = -1 if event.version is None else event.version
        group = GroupEntry(event.group, event.purpose, version)
        if event.recalled is not None:
            group.recalled, group.recorded = event.recalled, (event.source.path, event.source.key)
            self.recalls = True
        self.groups.setdefault(event.group, group)

    def _group(self, event: RolloutRequested) -> GroupEntry | None:
        """Generations of a rollout function have no prompt event."""
        if event.purpose is Purpose.CALL:
            self.groups.setdefault(event.group, GroupEntry(event.group, event.purpose, event.min_version))
        return self.groups.get(event.group)

    def _requested(self, event: RolloutRequested, group: GroupEntry) -> None:
        if not group.samples and group.purpose is Purpose.TRAIN:
            group.version, group.order = event.min_version, self.asked
            self.asked += 1
        sample = group.samples.get(event.sample)
        if sample is None:
            sample = SampleEntry(event.sample, group, event.attempt, event.prompt_length, event.min_version)
            group.samples[event.sample] = self.samples[event.sample] = sample
        sample.attempt, sample.fate = event.attempt, Fate.WAITING
        sample.min_version, sample.max_version = event.min_version, event.max_version

    def _completed(self, event: RolloutCompleted) -> None:
        sample = self.samples.get(event.sample) or self._sibling(event)
        if sample is not None:
            sample.prompt_length = sample.prompt_length if event.prompt is None else event.prompt.n
            sample.fate, sample.ended = Fate.COMPLETED, self.position
            sample.length, sample.digest = event.length, event.digest
            sample.widen(event.spans)

    def _sibling(self, event: RolloutCompleted) -> SampleEntry | None:
        """A further sample of a rollout joins its group, at its place."""
        first = self.samples.get(event.rollout)
        if first is None:
            return None
        group = first.group
        sample = SampleEntry(event.sample, group, event.attempt, first.prompt_length, first.min_version, event.rollout)
        self.samples[event.sample] = group.samples[event.sample] = sample
        group.samples = dict(sorted(group.samples.items(), key=lambda item: order_in_group(item[0])))
        return sample


async def read_ledger(run: str, records: AsyncIterator[Recorded]) -> Ledger:
    """The ledger of a run's whole log, for the audit of the runs that follow it."""
    ledger = Ledger(run)
    async for recorded in records:
        ledger.apply(recorded)
    return ledger
