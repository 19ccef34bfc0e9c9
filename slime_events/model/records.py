"""The records of a run: `Sample`, `Group`, `Step`, `Version`, and the `Run` that holds them, folded from its events.

`read_run` folds a whole log; `lookup.Lookup` folds only the events about one subject. Both give the same records, so a
view accepts either. Token arrays stay in the log (`core.tokens.trajectory.read_trajectory`): a record holds only their
lengths.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from schemas.archives import ArchiveSealed
from schemas.arrays import EMPTY_BYTES, Array
from schemas.batches import BatchSealed
from schemas.checkpoints import CheckpointSaved
from schemas.doc import doc
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
from schemas.weights import WeightsActivated, WeightsPublished, WeightsStored
from schemas.workers import WorkerJoined, WorkerLost
from slime_events.core.tokens.trajectory import merge_spans
from storage.log import Readable, Recorded

T = TypeVar("T")


# Records of which a run has many are structs that the garbage collector skips: they are created several times faster,
# and hold no cycle.
class Entry(msgspec.Struct, Generic[T], gc=False):
    """An event and its place in a log."""

    event: Annotated[T, doc("the event, without the numbers of most arrays")]
    position: Annotated[int, doc("position in the log, from 1")]
    at: Annotated[int, doc("UTC [ns], by the writer's clock")]
    producer: Annotated[str, doc("worker that appended the event")]
    run: Annotated[str, doc("run whose log holds the event")]


class Sample(msgspec.Struct, gc=False):
    """One sample, and what its rollout has recorded so far."""

    sample: Annotated[str, doc("id of the sample")]
    group: Annotated[str, doc("id of its group")]
    index: Annotated[int, doc("index of its rollout in the group")] = 0
    requests: Annotated[list[Entry[RolloutRequested]], doc("requests of its rollout, one per attempt")] = []
    chunks: Annotated[int, doc("number of rollout.progressed events")] = 0
    length: Annotated[int, doc("response length [tokens]")] = 0
    turns: Annotated[list[Entry[TurnRecorded]], doc("turns that have ended")] = []
    spans: Annotated[tuple[WeightSpan, ...], doc("weight versions over the response [length]")] = ()
    interruptions: Annotated[
        list[Entry[RolloutFailed] | Entry[RolloutSuspended]], doc("failures and suspensions of its rollout")
    ] = []
    completed: Annotated[Entry[RolloutCompleted] | None, doc("the end of its rollout; None until then")] = None
    reward: Annotated[
        Entry[RewardAssigned] | Entry[RewardFailed] | None,
        doc("its reward, or why it has none; None until it is graded"),
    ] = None

    def add(self, entry: Entry[Any]) -> None:
        """Fold in a chunk, the end of a turn, or an interruption of the sample's rollout."""
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
        """Reward as graded, before normalisation; None until it is graded, or if grading failed."""
        return self.reward.event.value if self.reward and isinstance(self.reward.event, RewardAssigned) else None


class Group(msgspec.Struct, gc=False):
    """One prompt and its samples."""

    group: Annotated[str, doc("id of the group")]
    prompt: Annotated[Entry[PromptSubmitted] | None, doc("the prompt")] = None
    order: Annotated[int, doc("index among requested training groups; -1 until requested, and for evaluations")] = -1
    samples: Annotated[dict[str, Sample], doc("samples by id")] = {}
    verdict: Annotated[
        Entry[GroupAccepted] | Entry[GroupRejected] | None,
        doc("decision of the filter; None until it is made, and for evaluations"),
    ] = None
    step: Annotated[int | None, doc("step whose batch has the group")] = None

    @property
    def members(self) -> list[Sample]:
        """The samples, in index order."""
        return [self.samples[sample] for sample in sorted(self.samples, key=order_in_group)]


@dataclass(slots=True)
class Step:
    """One training step: its batch, and the result of training on it."""

    step: Annotated[int, doc("number of the step, from 0")]
    sealed: Annotated[Entry[BatchSealed], doc("the batch")]
    committed: Annotated[Entry[StepCommitted] | None, doc("the result of training; None until the commit")] = None


@dataclass(slots=True)
class Version:
    """One weight version."""

    version: Annotated[int, doc("number of the version; 0 is what the run starts from")]
    committed: Annotated[
        Entry[StepCommitted] | None, doc("commit of the step that made it; None for the version that a run starts from")
    ] = None
    published: Annotated[Entry[WeightsPublished] | None, doc("its publication")] = None
    stored: Annotated[Entry[WeightsStored] | None, doc("when its files were complete; None: before its commit")] = None
    activations: Annotated[list[Entry[WeightsActivated]], doc("its loads, one per engine")] = field(
        default_factory=list
    )
    checkpoint: Annotated[Entry[CheckpointSaved] | None, doc("the checkpoint with these weights")] = None
    restored: Annotated[list[Entry[TrainerRestored]], doc("trainers that took over and resumed from it")] = field(
        default_factory=list
    )

    @property
    def digest(self) -> str | None:
        """Digest of the weights, as published, or as committed if they are not published."""
        if self.published is not None:
            return self.published.event.digest
        return self.committed.event.weights_digest if self.committed else None


@dataclass(slots=True)
class Run:
    """All records of a run, or those that a look-up fetched. `forget` drops records that nothing needs any more."""

    run: Annotated[str, doc("name of the run")]
    events: Annotated[int, doc("position of the last event folded in")] = 0
    first_at: Annotated[int, doc("UTC of the first event [ns]")] = 0
    last_at: Annotated[int, doc("UTC of the last event [ns]")] = 0
    requested: Annotated[int, doc("number of training groups requested")] = 0
    lifetime: Annotated[
        list[Entry[RunStarted | RunResumed | RunFinished | RunFailed]], doc("starts, resumptions and ends")
    ] = field(default_factory=list)
    groups: Annotated[dict[str, Group], doc("groups by id")] = field(default_factory=dict)
    samples: Annotated[dict[str, Sample], doc("samples by id")] = field(default_factory=dict)
    steps: Annotated[dict[int, Step], doc("steps by number")] = field(default_factory=dict)
    versions: Annotated[dict[int, Version], doc("weight versions by number")] = field(default_factory=dict)
    evals: Annotated[list[Entry[EvalCompleted]], doc("evaluations that ended")] = field(default_factory=list)
    workers: Annotated[dict[str, Entry[WorkerJoined]], doc("workers by name")] = field(default_factory=dict)
    lost: Annotated[list[Entry[WorkerLost]], doc("workers that were lost")] = field(default_factory=list)
    bad_prompts: Annotated[list[Entry[PromptRejected]], doc("prompts that could not be used")] = field(
        default_factory=list
    )
    segments: Annotated[list[Entry[ArchiveSealed]], doc("segments of the archive")] = field(default_factory=list)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that the run was started with, one table per component; empty before run.started."""
        return next((entry.event.settings for entry in self.lifetime if isinstance(entry.event, RunStarted)), {})

    @property
    def branched(self) -> Branched | None:
        """Point at which the run branched off; None if it is not a branch."""
        return next((entry.event.branched for entry in self.lifetime if isinstance(entry.event, RunStarted)), None)

    def version_of_step(self, step: int | None) -> int | None:
        """Return the weight version that a step made; None until the step is committed."""
        record = self.steps.get(step) if step is not None else None
        return record.committed.event.version if record and record.committed else None

    def apply(self, recorded: Recorded) -> None:
        """Fold in one event, without the numbers of its arrays."""
        envelope = recorded.envelope
        self.events, self.last_at = recorded.position, envelope.at
        self.first_at = self.first_at or envelope.at
        event = _without_tokens(envelope.event)
        self.add(Entry(event, recorded.position, envelope.at, envelope.producer, envelope.run))

    def add(self, entry: Entry[Any]) -> None:
        """Fold in one event as it is. The most frequent types come first."""
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
                if requested is not None:  # one rollout gave several samples, which share its requests and turns
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
            case WeightsStored():
                self.version(event.version).stored = entry
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
        """Drop a group and its samples, and return the group."""
        record = self.groups.pop(group, None)
        for sample in record.samples if record else ():
            del self.samples[sample]
        return record

    def group(self, group: str) -> Group:
        """Return the record of a group; create it if it is missing."""
        record = self.groups.get(group)
        if record is None:
            record = self.groups[group] = Group(group)
        return record

    def sample(self, sample: str, group: str) -> Sample:
        """Return the record of a sample; create it if it is missing."""
        record = self.samples.get(sample)
        if record is None:
            record = self.samples[sample] = Sample(sample, group, order_in_group(sample)[0])
            self.group(group).samples[sample] = record
        return record

    def version(self, version: int) -> Version:
        """Return the record of a weight version; create it if it is missing."""
        record = self.versions.get(version)
        if record is None:
            record = self.versions[version] = Version(version)
        return record


async def read_run(log: Readable, also: Callable[[Recorded], object] | None = None) -> Run:
    """Fold all events that are in the log now. Call `also` with each of them."""
    run = Run(log.run)
    async for recorded in log.read():
        run.apply(recorded)
        if also is not None:
            also(recorded)
    return run


def fold_run(name: str, events: Iterable[Recorded]) -> Run:
    """Fold events of run `name`."""
    run = Run(name)
    for recorded in events:
        run.apply(recorded)
    return run


KEPT = ("loss_mask", "credit")
"""Arrays whose numbers are kept: which tokens are trained on, and with which weight."""
_WITH_TOKENS = (RolloutRequested, RolloutProgressed, RolloutCompleted, TurnRecorded, PromptSubmitted)


def _without_tokens(event: Event) -> Event:
    """Return the event with type and length of its arrays, without their numbers. Loss masks and credit, which are
    rare, stay whole.
    """
    if not isinstance(event, _WITH_TOKENS):
        return event
    arrays = {name: getattr(event, name) for name in event.__struct_fields__ if name not in KEPT}
    empty: dict[str, Any] = {name: Array(dtype=a.dtype, n=a.n) for name, a in arrays.items() if isinstance(a, Array)}
    if isinstance(event, TurnRecorded) and event.agent is not None:
        empty["agent"] = msgspec.structs.replace(event.agent, request=EMPTY_BYTES)
    return msgspec.structs.replace(event, **empty)
