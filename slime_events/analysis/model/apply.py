"""`apply`: one recorded event onto a `History`. The only code that changes one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from schemas.archives import ArchiveSealed
from schemas.arrays import Array
from schemas.batches import BatchSealed
from schemas.checkpoints import CheckpointSaved
from schemas.evals import EvalCompleted
from schemas.event import Event
from schemas.groups import GroupAccepted, GroupRejected
from schemas.ids import place_of
from schemas.prompts import PromptRejected, PromptSubmitted
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import RolloutCompleted, RolloutFailed, RolloutProgressed, RolloutRequested, RolloutSuspended
from schemas.runs import RunFailed, RunFinished, RunResumed, RunStarted
from schemas.steps import StepCommitted
from schemas.turns import TurnRecorded
from schemas.weights import WeightsActivated, WeightsPublished
from schemas.workers import WorkerJoined, WorkerLost
from slime_events.analysis.model.history import History
from slime_events.analysis.model.parts import GroupHistory, Said, SampleHistory, StepHistory, VersionHistory
from slime_events.core.trajectory import merge_spans
from storage.log import Readable, Recorded


async def read_history(log: Readable, also: Callable[[Recorded], object] | None = None) -> History:
    """The history of all that is in the log now. `also` is shown every event on the way."""
    history = History(log.run)
    async for recorded in log.read():
        apply(history, recorded)
        if also is not None:
            also(recorded)
    return history


def apply(history: History, recorded: Recorded) -> None:
    """Fold one event in."""
    envelope = recorded.envelope
    history.events, history.last_at = recorded.position, envelope.at
    history.first_at = history.first_at or envelope.at
    handler = _HANDLERS.get(type(envelope.event))
    if handler is not None:
        event = _light(envelope.event)
        handler(history, Said(event, recorded.position, envelope.at, envelope.producer))


def _light(event: Event) -> Event:
    """The event without its arrays' bytes: their types and lengths stay."""
    if not isinstance(event, RolloutRequested | RolloutProgressed | RolloutCompleted | TurnRecorded | PromptSubmitted):
        return event
    arrays = {name: getattr(event, name) for name in event.__struct_fields__}
    empty = {name: Array(dtype=a.dtype, n=a.n) for name, a in arrays.items() if isinstance(a, Array)}
    return msgspec.structs.replace(event, **empty)


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
