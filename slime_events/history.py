"""`History`: everything that was said in a run, by what it is about. A fold of the log, in one pass.

Where `RunState` forgets what is over, a history keeps it: which samples a group had, why it was taken or not, which
step trained it and which weight version came of that. Token arrays are left in the log; `trajectory` reads those of
one sample when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from schemas.archives import ArchiveSealed
from schemas.arrays import Array
from schemas.batches import BatchSealed
from schemas.checkpoints import CheckpointSaved
from schemas.errors import RunNotFound
from schemas.evals import EvalCompleted
from schemas.event import Event
from schemas.groups import GroupAccepted, GroupRejected
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
from schemas.sample_ids import group_of, place_of, sample_id
from schemas.steps import StepCommitted
from schemas.subjects import about
from schemas.turns import TurnRecorded
from schemas.weights import WeightsActivated, WeightsPublished
from schemas.workers import WorkerJoined, WorkerLost
from slime_events.config.nearest import nearest
from slime_events.trajectory import Fetch, Trajectories, Trajectory, merge_spans
from storage.log import Readable, Recorded

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Said(Generic[T]):
    """An event, and where and when it was said. at: UTC nanoseconds."""

    event: T
    position: int
    at: int
    producer: str


@dataclass(slots=True)
class SampleHistory:
    """One sample. spans: weight versions over its tokens; chunks: rollout.progressed events; turns: that ended."""

    sample: str
    group: str
    index: int = 0
    requests: list[Said[RolloutRequested]] = field(default_factory=list)
    chunks: int = 0
    length: int = 0
    turns: list[Said[TurnRecorded]] = field(default_factory=list)
    spans: tuple[WeightSpan, ...] = ()
    interruptions: list[Said[RolloutFailed] | Said[RolloutSuspended]] = field(default_factory=list)
    completed: Said[RolloutCompleted] | None = None
    reward: Said[RewardAssigned] | Said[RewardFailed] | None = None

    @property
    def value(self) -> float | None:
        """Its reward, where it got one."""
        return self.reward.event.value if self.reward and isinstance(self.reward.event, RewardAssigned) else None


@dataclass(slots=True)
class GroupHistory:
    """One group. step: the step whose batch it is in."""

    group: str
    prompt: Said[PromptSubmitted] | None = None
    samples: list[str] = field(default_factory=list)
    decision: Said[GroupAccepted] | Said[GroupRejected] | None = None
    step: int | None = None


@dataclass(slots=True)
class StepHistory:
    """One step: its batch, and what training on it gave."""

    step: int
    sealed: Said[BatchSealed]
    committed: Said[StepCommitted] | None = None


@dataclass(slots=True)
class VersionHistory:
    """One weight version."""

    version: int
    published: Said[WeightsPublished] | None = None
    activations: list[Said[WeightsActivated]] = field(default_factory=list)
    checkpoint: Said[CheckpointSaved] | None = None


@dataclass(slots=True)
class History:
    """See the module. `events`: the last position folded in; first_at, last_at: UTC nanoseconds."""

    run: str
    events: int = 0
    first_at: int = 0
    last_at: int = 0
    lifetime: list[Said[RunStarted] | Said[RunResumed] | Said[RunFinished] | Said[RunFailed]] = field(
        default_factory=list
    )
    groups: dict[str, GroupHistory] = field(default_factory=dict)
    samples: dict[str, SampleHistory] = field(default_factory=dict)
    steps: dict[int, StepHistory] = field(default_factory=dict)
    versions: dict[int, VersionHistory] = field(default_factory=dict)
    evals: list[Said[EvalCompleted]] = field(default_factory=list)
    workers: dict[str, Said[WorkerJoined]] = field(default_factory=dict)
    lost: list[Said[WorkerLost]] = field(default_factory=list)
    bad_prompts: list[Said[PromptRejected]] = field(default_factory=list)
    segments: list[Said[ArchiveSealed]] = field(default_factory=list)

    @property
    def settings(self) -> dict[str, Any]:
        """What the run was started with, one table per component; empty before run.started."""
        return next((said.event.settings for said in self.lifetime if isinstance(said.event, RunStarted)), {})

    @property
    def branched(self) -> Branched | None:
        """Where the run goes on from, if it is a branch."""
        return next((said.event.branched for said in self.lifetime if isinstance(said.event, RunStarted)), None)

    def apply(self, recorded: Recorded) -> None:
        """Fold one event in."""
        envelope = recorded.envelope
        self.events, self.last_at = recorded.position, envelope.at
        self.first_at = self.first_at or envelope.at
        handler = _HANDLERS.get(type(envelope.event))
        if handler is not None:
            event = _light(envelope.event)
            handler(self, Said(event, recorded.position, envelope.at, envelope.producer))

    def find_group(self, name: str) -> GroupHistory:
        """A group by its id, or by a beginning of it that no other has. Raises RunNotFound with the nearest ids."""
        return self.groups[_find(name, self.groups, f"group of run {self.run}")]

    def find_sample(self, name: str) -> SampleHistory:
        """A sample by its id, or by a beginning of it that no other has. Raises RunNotFound with the nearest ids."""
        return self.samples[_find(name, self.samples, f"sample of run {self.run}")]

    def find_step(self, step: int) -> StepHistory:
        """A sealed step, counted from 0. Raises RunNotFound with the steps there are."""
        return _numbered(step, self.steps, "step", self.run)

    def find_version(self, version: int) -> VersionHistory:
        """A published weight version. Raises RunNotFound with the versions there are."""
        return _numbered(version, self.versions, "weight version", self.run)

    def group_of(self, sample: SampleHistory) -> GroupHistory:
        """The group that a sample belongs to."""
        return self.groups[sample.group]

    def members(self, group: GroupHistory) -> list[SampleHistory]:
        """The samples of a group, in index order."""
        return [self.samples[sample] for sample in sorted(group.samples, key=place_of)]

    def version_of_step(self, step: int | None) -> int | None:
        """The weight version that a step made, once it is committed."""
        found = self.steps.get(step) if step is not None else None
        return found.committed.event.version if found and found.committed else None


async def read_history(log: Readable, also: Callable[[Recorded], object] | None = None) -> History:
    """The history of all that is in the log now. `also` is shown every event on the way."""
    history = History(log.run)
    async for recorded in log.read():
        history.apply(recorded)
        if also is not None:
            also(recorded)
    return history


async def trajectory(log: Readable, sample: str, fetch: Fetch) -> Trajectory:
    """Tokens, log-probs, spans and text of one sample so far. Raises RunNotFound, BlobMissing, StorageError."""
    folded = Trajectories(fetch)
    asked_for = sample_id(group_of(sample), place_of(sample)[0])
    for name in dict.fromkeys((asked_for, sample)):
        async for recorded in log.read(subject=about(log.run, "rollout", name)):
            folded.apply(recorded.envelope.event, recorded.position)
    if sample not in folded.by_sample:
        raise RunNotFound(f"run {log.run} has no rollout of sample {sample!r}")
    return folded.by_sample[sample]


def _light(event: Event) -> Event:
    """The event without its arrays' bytes: their types and lengths stay."""
    if not isinstance(event, RolloutRequested | RolloutProgressed | RolloutCompleted | TurnRecorded | PromptSubmitted):
        return event
    arrays = {name: getattr(event, name) for name in event.__struct_fields__}
    empty = {name: Array(dtype=a.dtype, n=a.n) for name, a in arrays.items() if isinstance(a, Array)}
    return msgspec.structs.replace(event, **empty)


def _find(name: str, known: Iterable[str], what: str) -> str:
    ids = list(known)
    if name in ids:
        return name
    begun = [one for one in ids if one.startswith(name)]
    if len(begun) == 1:
        return begun[0]
    if begun:
        more = ", ..." if len(begun) > 5 else ""
        raise RunNotFound(f"{len(begun)} ids begin with {name!r}; which {what} is it: {', '.join(begun[:5])}{more}")
    near = nearest(name, ids, 5) or tuple(ids[:5])
    raise RunNotFound(f"no {what} is called {name!r}; {'there is none' if not near else 'near: ' + ', '.join(near)}")


def _numbered(number: int, known: dict[int, T], what: str, run: str) -> T:
    if number in known:
        return known[number]
    there = f"there are {min(known)} to {max(known)}" if known else "there is none yet"
    raise RunNotFound(f"run {run} has no {what} {number}: {there}")


def _life(history: History, said: Said[Any]) -> None:
    history.lifetime.append(said)


def _group(history: History, group: str) -> GroupHistory:
    return history.groups.setdefault(group, GroupHistory(group))


def _prompt(history: History, said: Said[PromptSubmitted]) -> None:
    _group(history, said.event.group).prompt = said


def _bad_prompt(history: History, said: Said[PromptRejected]) -> None:
    history.bad_prompts.append(said)


def _requested(history: History, said: Said[RolloutRequested]) -> None:
    event = said.event
    sample = history.samples.get(event.sample)
    if sample is None:
        sample = history.samples[event.sample] = SampleHistory(event.sample, event.group, event.index)
        _group(history, event.group).samples.append(event.sample)
    sample.requests.append(said)


def _progressed(history: History, said: Said[RolloutProgressed]) -> None:
    sample = history.samples.get(said.event.sample)
    if sample is not None:
        sample.chunks += 1
        sample.length = said.event.start + said.event.tokens.n
        sample.spans = merge_spans(sample.spans, said.event.spans)


def _completed(history: History, said: Said[RolloutCompleted]) -> None:
    event = said.event
    sample = history.samples.get(event.sample)
    if sample is None and event.rollout in history.samples:
        sample = history.samples[event.sample] = SampleHistory(event.sample, event.group, place_of(event.sample)[0])
        asked_for = history.samples[event.rollout]
        sample.requests, sample.turns = asked_for.requests, asked_for.turns
        _group(history, event.group).samples.append(event.sample)
    if sample is not None:
        sample.completed, sample.length, sample.spans = said, said.event.length, said.event.spans


def _turn(history: History, said: Said[TurnRecorded]) -> None:
    sample = history.samples.get(said.event.sample)
    if sample is not None:
        sample.turns.append(said)


def _interrupted(history: History, said: Said[Any]) -> None:
    sample = history.samples.get(said.event.sample)
    if sample is not None:
        sample.interruptions.append(said)


def _rewarded(history: History, said: Said[Any]) -> None:
    sample = history.samples.get(said.event.sample)
    if sample is not None:
        sample.reward = said


def _decided(history: History, said: Said[Any]) -> None:
    _group(history, said.event.group).decision = said


def _sealed(history: History, said: Said[BatchSealed]) -> None:
    history.steps[said.event.step] = StepHistory(said.event.step, said)
    for group in said.event.groups:
        _group(history, group).step = said.event.step


def _committed(history: History, said: Said[StepCommitted]) -> None:
    step = history.steps.get(said.event.step)
    if step is not None:
        step.committed = said


def _version(history: History, version: int) -> VersionHistory:
    return history.versions.setdefault(version, VersionHistory(version))


def _published(history: History, said: Said[WeightsPublished]) -> None:
    _version(history, said.event.version).published = said


def _activated(history: History, said: Said[WeightsActivated]) -> None:
    _version(history, said.event.version).activations.append(said)


def _checkpoint(history: History, said: Said[CheckpointSaved]) -> None:
    _version(history, said.event.version).checkpoint = said


def _evaluated(history: History, said: Said[EvalCompleted]) -> None:
    history.evals.append(said)


def _joined(history: History, said: Said[WorkerJoined]) -> None:
    history.workers[said.event.worker] = said


def _lost(history: History, said: Said[WorkerLost]) -> None:
    history.lost.append(said)


def _archived(history: History, said: Said[ArchiveSealed]) -> None:
    history.segments.append(said)


_HANDLERS: dict[type[Event], Callable[[History, Said[Any]], None]] = {
    RunStarted: _life,
    RunResumed: _life,
    RunFinished: _life,
    RunFailed: _life,
    PromptSubmitted: _prompt,
    PromptRejected: _bad_prompt,
    RolloutRequested: _requested,
    RolloutProgressed: _progressed,
    RolloutCompleted: _completed,
    TurnRecorded: _turn,
    RolloutSuspended: _interrupted,
    RolloutFailed: _interrupted,
    RewardAssigned: _rewarded,
    RewardFailed: _rewarded,
    GroupAccepted: _decided,
    GroupRejected: _decided,
    BatchSealed: _sealed,
    StepCommitted: _committed,
    WeightsPublished: _published,
    WeightsActivated: _activated,
    CheckpointSaved: _checkpoint,
    EvalCompleted: _evaluated,
    WorkerJoined: _joined,
    WorkerLost: _lost,
    ArchiveSealed: _archived,
}
