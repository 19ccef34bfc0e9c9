"""The records of a run: `Sample`, `Group`, `Step`, `Version` and the `Run` that holds them, folded from its events.

`read_run` folds a whole log; `lookup.Lookup` folds only the events about one subject. Both make the same records, so a
view takes either. Token arrays stay in the log (`core.trajectory.read_trajectory`): a record has their lengths.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from schemas.archives import ArchiveSealed
from schemas.arrays import EMPTY_BYTES, Array
from schemas.batches import BatchSealed
from schemas.checkpoints import CheckpointSaved
from schemas.evals import EvalCompleted
from schemas.event import Event, Purpose
from schemas.groups import GroupAccepted, GroupRejected
from schemas.ids import order_in_group
from schemas.prompts import PromptRejected, PromptSubmitted
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
from schemas.trainers import TrainerRestored
from schemas.turns import TurnRecorded
from schemas.weights import WeightsActivated, WeightsPublished
from schemas.workers import WorkerJoined, WorkerLost
from slime_events.core.trajectory import merge_spans
from storage.log import Readable, Recorded

T = TypeVar("T")


# Of the records that a run has many of, structs that the garbage collector passes over: they are made several times as
# fast, and hold no cycle.
class Entry(msgspec.Struct, Generic[T], gc=False):
    """An event and its place in a log. at: UTC nanoseconds by the writer's clock. run: whose log holds it."""

    event: T
    position: int
    at: int
    producer: str
    run: str


class Sample(msgspec.Struct, gc=False):
    """One sample. index: of its rollout within the group. requests: of that rollout, one per attempt. chunks: number of
    rollout.progressed events. turns: that have ended. spans: weight versions over the
    response [length].
    """

    sample: str
    group: str
    index: int = 0
    requests: list[Entry[RolloutRequested]] = []
    chunks: int = 0
    length: int = 0
    turns: list[Entry[TurnRecorded]] = []
    spans: tuple[WeightSpan, ...] = ()
    interruptions: list[Entry[RolloutFailed] | Entry[RolloutSuspended]] = []
    completed: Entry[RolloutCompleted] | None = None
    reward: Entry[RewardAssigned] | Entry[RewardFailed] | None = None

    def add(self, entry: Entry[Any]) -> None:
        """A chunk, the end of a turn, or an interruption of its rollout."""
        event = entry.event
        match event:
            case RolloutProgressed():
                self.chunks += 1
                self.length = event.start + event.tokens.n
                self.spans = merge_spans(self.spans, event.spans)
            case TurnRecorded():
                self.turns.append(entry)
            case _:
                self.interruptions.append(entry)

    @property
    def value(self) -> float | None:
        """Its reward as graded, before normalisation; None where grading failed or is not over."""
        return self.reward.event.value if self.reward and isinstance(self.reward.event, RewardAssigned) else None


class Group(msgspec.Struct, gc=False):
    """One prompt and its samples. order: index among requested training groups, -1 before and for evaluations.
    verdict: of the filter; None while undecided and for evaluations. step: whose batch has it.
    """

    group: str
    prompt: Entry[PromptSubmitted] | None = None
    order: int = -1
    samples: dict[str, Sample] = {}
    verdict: Entry[GroupAccepted] | Entry[GroupRejected] | None = None
    step: int | None = None

    @property
    def members(self) -> list[Sample]:
        """Its samples, in index order."""
        return [self.samples[sample] for sample in sorted(self.samples, key=order_in_group)]


@dataclass(slots=True)
class Step:
    """One training step: its batch, and what training on it gave."""

    step: int
    sealed: Entry[BatchSealed]
    committed: Entry[StepCommitted] | None = None


@dataclass(slots=True)
class Version:
    """One weight version. committed: of the step that made it, None for the version that a run begins with. restored:
    trainers that took over and went on from it.
    """

    version: int
    committed: Entry[StepCommitted] | None = None
    published: Entry[WeightsPublished] | None = None
    activations: list[Entry[WeightsActivated]] = field(default_factory=list)
    checkpoint: Entry[CheckpointSaved] | None = None
    restored: list[Entry[TrainerRestored]] = field(default_factory=list)

    @property
    def digest(self) -> str | None:
        """Of its weights, as published or else as committed."""
        if self.published is not None:
            return self.published.event.digest
        return self.committed.event.weights_digest if self.committed else None


@dataclass(slots=True)
class Run:
    """All records of a run, or those of a look-up. events: the last position folded in. first_at, last_at: UTC
    nanoseconds. lifetime: starts, resumptions and ends. A record may be dropped once nobody asks for it (`forget`).
    """

    run: str
    events: int = 0
    first_at: int = 0
    last_at: int = 0
    requested: int = 0
    lifetime: list[Entry[RunStarted | RunResumed | RunFinished | RunFailed]] = field(default_factory=list)
    groups: dict[str, Group] = field(default_factory=dict)
    samples: dict[str, Sample] = field(default_factory=dict)
    steps: dict[int, Step] = field(default_factory=dict)
    versions: dict[int, Version] = field(default_factory=dict)
    evals: list[Entry[EvalCompleted]] = field(default_factory=list)
    workers: dict[str, Entry[WorkerJoined]] = field(default_factory=dict)
    lost: list[Entry[WorkerLost]] = field(default_factory=list)
    bad_prompts: list[Entry[PromptRejected]] = field(default_factory=list)
    segments: list[Entry[ArchiveSealed]] = field(default_factory=list)

    @property
    def settings(self) -> dict[str, Any]:
        """What the run was started with, one table per component; empty before run.started."""
        return next((entry.event.settings for entry in self.lifetime if isinstance(entry.event, RunStarted)), {})

    @property
    def branched(self) -> Branched | None:
        """Where the run goes on from, if it is a branch."""
        return next((entry.event.branched for entry in self.lifetime if isinstance(entry.event, RunStarted)), None)

    def version_of_step(self, step: int | None) -> int | None:
        """The weight version that a step made, once it is committed."""
        record = self.steps.get(step) if step is not None else None
        return record.committed.event.version if record and record.committed else None

    def apply(self, recorded: Recorded) -> None:
        """Fold one event in, without the numbers of its arrays."""
        envelope = recorded.envelope
        self.events, self.last_at = recorded.position, envelope.at
        self.first_at = self.first_at or envelope.at
        event = _without_tokens(envelope.event)
        self.add(Entry(event, recorded.position, envelope.at, envelope.producer, envelope.run))

    def add(self, entry: Entry[Any]) -> None:
        """Fold one event in as it is, the most frequent types first."""
        event = entry.event
        match event:
            case RolloutRequested():
                group = self.group(event.group)
                if group.order < 0 and event.purpose is Purpose.TRAIN:
                    group.order = self.requested
                    self.requested += 1
                self.sample(event.sample, event.group).requests.append(entry)
            case RolloutCompleted():
                sample = self.sample(event.sample, event.group)
                requested = self.samples.get(event.rollout)
                if requested is not None:  # one rollout gave several samples: they share its requests and turns
                    sample.requests, sample.turns = requested.requests, requested.turns
                sample.completed, sample.length, sample.spans = entry, event.length, event.spans
            case RewardAssigned() | RewardFailed():
                if (graded := self.samples.get(event.sample)) is not None:
                    graded.reward = entry
            case RolloutProgressed() | RolloutSuspended() | RolloutFailed() | TurnRecorded():
                if (begun := self.samples.get(event.sample)) is not None:
                    begun.add(entry)
            case PromptSubmitted():
                self.group(event.group).prompt = entry
            case GroupAccepted() | GroupRejected():
                self.group(event.group).verdict = entry
            case BatchSealed():
                self.steps[event.step] = Step(event.step, entry)
                for name in event.groups:
                    self.group(name).step = event.step
            case StepCommitted():
                self.version(event.version).committed = entry
                if (step := self.steps.get(event.step)) is not None:
                    step.committed = entry
            case WeightsPublished():
                self.version(event.version).published = entry
            case WeightsActivated():
                self.version(event.version).activations.append(entry)
            case CheckpointSaved():
                self.version(event.version).checkpoint = entry
            case TrainerRestored():
                self.version(event.version).restored.append(entry)
            case WorkerJoined():
                self.workers[event.worker] = entry
            case WorkerLost():
                self.lost.append(entry)
            case RunStarted() | RunResumed() | RunFinished() | RunFailed():
                self.lifetime.append(entry)
            case PromptRejected():
                self.bad_prompts.append(entry)
            case EvalCompleted():
                self.evals.append(entry)
            case ArchiveSealed():
                self.segments.append(entry)

    def forget(self, group: str) -> Group | None:
        """Drop a group and its samples, and return it."""
        record = self.groups.pop(group, None)
        for sample in record.samples if record else ():
            del self.samples[sample]
        return record

    def group(self, group: str) -> Group:
        """The record of a group, made where there is none."""
        record = self.groups.get(group)
        if record is None:
            record = self.groups[group] = Group(group)
        return record

    def sample(self, sample: str, group: str) -> Sample:
        """The record of a sample, made where there is none."""
        record = self.samples.get(sample)
        if record is None:
            record = self.samples[sample] = Sample(sample, group, order_in_group(sample)[0])
            self.group(group).samples[sample] = record
        return record

    def version(self, version: int) -> Version:
        """The record of a weight version, made where there is none."""
        record = self.versions.get(version)
        if record is None:
            record = self.versions[version] = Version(version)
        return record


async def read_run(log: Readable, also: Callable[[Recorded], object] | None = None) -> Run:
    """The records of all that is in the log now. `also` is called with every event on the way."""
    run = Run(log.run)
    async for recorded in log.read():
        run.apply(recorded)
        if also is not None:
            also(recorded)
    return run


def folded(name: str, events: Iterable[Recorded]) -> Run:
    """The records of these events of run `name`."""
    run = Run(name)
    for recorded in events:
        run.apply(recorded)
    return run


KEPT = ("loss_mask", "credit")
"""Arrays whose numbers are kept: what is trained on, and how much of it."""
_WITH_TOKENS = (RolloutRequested, RolloutProgressed, RolloutCompleted, TurnRecorded, PromptSubmitted)


def _without_tokens(event: Event) -> Event:
    """The event with arrays of a type and a length, but no numbers. Loss masks and credit are kept: they are rare."""
    if not isinstance(event, _WITH_TOKENS):
        return event
    arrays = {name: getattr(event, name) for name in event.__struct_fields__ if name not in KEPT}
    empty: dict[str, Any] = {name: Array(dtype=a.dtype, n=a.n) for name, a in arrays.items() if isinstance(a, Array)}
    if isinstance(event, TurnRecorded) and event.agent is not None:
        empty["agent"] = msgspec.structs.replace(event.agent, request=EMPTY_BYTES)
    return msgspec.structs.replace(event, **empty)
