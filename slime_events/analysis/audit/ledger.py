"""`Ledger`: the samples, groups, batches, versions and rules that checks look up. It judges nothing."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import msgspec

from schemas.batches import BatchSealed
from schemas.doc import doc
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
    """Settings that checks depend on. None if `run.started` has no settings, or settings that this version cannot read:
    then the dependent checks count, and judge nothing.
    """

    plan: Annotated[Plan | None, doc("settings of the conductor")] = None
    algorithm: Annotated[AlgorithmSettings | None, doc("settings of the algorithm")] = None


def rules_of(settings: dict[str, Any]) -> Rules:
    """Return the rules in the settings of a `run.started`."""
    if not settings:
        return Rules()
    try:
        train = msgspec.convert(settings, TrainSettings)
        return Rules(make_plan(train.rollout, train.evaluation, train.trainer), train.algorithm)
    except (msgspec.ValidationError, ValueError):
        return Rules()


class Fate(enum.StrEnum):
    """Progress of a rollout."""

    WAITING = "waiting"
    RUNNING = "running"
    SUSPENDED = "suspended"
    FAILED = "failed"
    COMPLETED = "completed"


@dataclass(slots=True)
class SampleEntry:
    """One sample."""

    sample: Annotated[str, doc("id of the sample")]
    group: Annotated[GroupEntry, doc("its group")]
    attempt: Annotated[int, doc("index of the newest attempt, from 0")]
    prompt_length: Annotated[int, doc("prompt length [tokens]")]
    min_version: Annotated[int, doc("oldest weights that the last request allows")]
    rollout: Annotated[str, doc("for a further sample of a rollout, the sample that was requested")] = ""
    max_version: Annotated[int | None, doc("newest weights that the last request allows; None: no bound")] = None
    fate: Annotated[Fate, doc("progress of its rollout")] = Fate.WAITING
    ended: Annotated[int, doc("position of its rollout.completed; 0 before")] = 0
    length: Annotated[int, doc("response length [tokens]")] = 0
    oldest: Annotated[int | None, doc("oldest weight version that made a token")] = None
    newest: Annotated[int | None, doc("newest weight version that made a token")] = None
    digest: Annotated[str, doc("digest of tokens and log-probs, sha256 hex")] = ""
    reward: Annotated[float | None, doc("reward as assigned")] = None
    graded: Annotated[int, doc("position of its reward, or of the failure to grade it; 0 before")] = 0

    def widen(self, spans: tuple[WeightSpan, ...]) -> None:
        """Include the weight versions of these tokens in the range."""
        for span in spans:
            version = span.version
            self.oldest = version if self.oldest is None else min(self.oldest, version)
            self.newest = version if self.newest is None else max(self.newest, version)


@dataclass(slots=True)
class GroupEntry:
    """One group."""

    group: Annotated[str, doc("id of the group")]
    purpose: Annotated[Purpose, doc("why it is generated")]
    version: Annotated[int, doc("weights at its first request; for an evaluation, the version that it evaluates")]
    samples: Annotated[dict[str, SampleEntry], doc("samples by id")] = field(default_factory=dict)
    order: Annotated[int, doc("index among requested training groups; -1 before")] = -1
    decided: Annotated[int, doc("position of its verdict; 0 before")] = 0
    accepted: Annotated[bool, doc("whether the verdict accepts it")] = False
    step: Annotated[int | None, doc("step whose batch has it")] = None
    recalled: Annotated[Recalled | None, doc("the recorded rollouts that it reuses")] = None
    recorded: Annotated[tuple[str, str], doc("source and key of the group that those are from")] = ("", "")

    @property
    def oldest(self) -> int:
        """The group's oldest weight version; a sample without tokens counts as the version of its request."""
        versions = (s.min_version if s.oldest is None else s.oldest for s in self.samples.values())
        return min(versions, default=self.version)


@dataclass(slots=True)
class Ledger:
    """Contents of a log so far."""

    run: Annotated[str, doc("name of the run")]
    rules: Annotated[Rules, doc("from the settings in force, if the log has any")] = field(default_factory=Rules)
    settings: Annotated[dict[str, Any], doc("those settings, one table per component")] = field(default_factory=dict)
    position: Annotated[int, doc("position of the last event")] = 0
    foreign: Annotated[int, doc("foreign records before it")] = 0
    passed: Annotated[int, doc("foreign records so far")] = 0
    ended: Annotated[int, doc("position of the run's end; 0 while it runs")] = 0
    branched: Annotated[Branched | None, doc("where it branched off; None if it starts from a base checkpoint")] = None
    incarnation: Annotated[int, doc("number of the newest incarnation")] = 0
    groups: Annotated[dict[str, GroupEntry], doc("groups by id")] = field(default_factory=dict)
    samples: Annotated[dict[str, SampleEntry], doc("samples by id")] = field(default_factory=dict)
    requested: Annotated[int, doc("number of training groups requested")] = 0
    batches: Annotated[dict[int, BatchSealed], doc("the run's own batches by step")] = field(default_factory=dict)
    steps: Annotated[dict[int, StepCommitted], doc("the run's own commits by step")] = field(default_factory=dict)
    published: Annotated[dict[int, WeightsPublished], doc("publications by version")] = field(default_factory=dict)
    restored: Annotated[dict[int, list[TrainerRestored]], doc("takeovers by version")] = field(default_factory=dict)
    is_approximate: Annotated[bool, doc("whether one of them lacked the committed optimizer state")] = False
    recalls: Annotated[bool, doc("whether the run reuses recorded rollouts")] = False

    def apply(self, recorded: Recorded) -> None:
        """Take one event in. Events that do not fit are left to the checks."""
        self.position, self.foreign = recorded.position, self.passed
        event = recorded.envelope.event  # the most frequent types first
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
                for entry in [self.groups[name] for name in event.groups if name in self.groups]:
                    entry.step = event.step if entry.step is None else entry.step
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
        """Return the digest of a version's weights; None before they are committed."""
        step, published = self.steps.get(version - 1), self.published.get(version)
        return step.weights_digest if step else published.digest if published else None

    @property
    def first(self) -> int:
        """The version that the run starts from."""
        return 0 if self.branched is None else self.branched.version

    @property
    def follows(self) -> bool:
        """Whether its batches are made of another run's rollouts."""
        return self.branched is not None and self.branched.follows

    @property
    def is_driven(self) -> bool:
        """Whether a client's commands make its steps."""
        return bool(self.settings.get("run", {}).get("tinker"))

    @property
    def steps_sealed(self) -> int:
        """Number of steps with a batch, a parent's included: the next batch is for this step."""
        return self.first + len(self.batches)

    @property
    def steps_committed(self) -> int:
        """Number of committed steps, a parent's included."""
        return self.first + len(self.steps)

    def tokens_of(self, batch: BatchSealed) -> int:
        """Return the tokens of prompts and responses of a batch's samples, as far as the log holds them."""
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
        """Return the group of a request. Generations of a rollout function have no prompt event."""
        if event.purpose is Purpose.CALL:
            self.groups.setdefault(event.group, GroupEntry(event.group, event.purpose, event.min_version))
        return self.groups.get(event.group)

    def _requested(self, event: RolloutRequested, group: GroupEntry) -> None:
        if not group.samples and group.purpose is Purpose.TRAIN:
            group.version, group.order = event.min_version, self.requested
            self.requested += 1
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
        """Insert a further sample of a rollout into its group, in order."""
        first = self.samples.get(event.rollout)
        if first is None:
            return None
        group = first.group
        sample = SampleEntry(event.sample, group, event.attempt, first.prompt_length, first.min_version, event.rollout)
        self.samples[event.sample] = group.samples[event.sample] = sample
        group.samples = dict(sorted(group.samples.items(), key=lambda item: order_in_group(item[0])))
        return sample


async def read_ledger(run: str, records: AsyncIterator[Recorded]) -> Ledger:
    """Return the ledger of a run's whole log, for the audit of runs that follow it."""
    ledger = Ledger(run)
    async for recorded in records:
        ledger.apply(recorded)
    return ledger
