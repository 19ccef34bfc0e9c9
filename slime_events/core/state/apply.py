"""`apply` and `apply_all`: fold recorded events into a `RunState`. Nothing else changes a state."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import UNSET, structs

from schemas.archives import ArchiveSealed
from schemas.batches import BatchSealed
from schemas.checkpoints import CheckpointSaved
from schemas.evals import EvalCompleted
from schemas.event import Event, Purpose
from schemas.groups import GroupAccepted, GroupRejected, RejectionCause
from schemas.ids import BROUGHT, INBOX, TRAIN, evaluation_id, order_in_group
from schemas.placements import PlacementPlanned
from schemas.prompts import PromptOffered, PromptRejected, PromptSubmitted, PromptWanted
from schemas.registry import EVENT_CLASSES
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import (
    RolloutCompleted,
    RolloutFailed,
    RolloutProgressed,
    RolloutRequested,
    RolloutReturned,
    RolloutSuspended,
)
from schemas.runs import RunFailed, RunFinished, RunResumed, RunStarted
from schemas.sessions import SessionOpened, SessionSealed
from schemas.steps import StepCommitted
from schemas.turns import TurnBegun, TurnRecorded
from schemas.weights import WeightsActivated, WeightsPublished, WeightsStored
from schemas.workers import WorkerLost
from slime_events.core.state.group import GroupPhase, GroupState, SamplePhase, SampleState
from slime_events.core.state.partial_events import (
    PARTIAL_DECISIONS,
    PARTIAL_EVENTS,
    Completed,
    FoldedEvent,
    Requested,
    Rewarded,
)
from slime_events.core.state.run import EvalState, RunPhase, RunState, SealedState
from storage.log import Recorded

# Bound once: in a loop over a million events, attribute access to an enum's member takes much of the time.
_TRAIN, _SUBMITTED = Purpose.TRAIN, GroupPhase.SUBMITTED
_REQUESTED, _RUNNING = SamplePhase.REQUESTED, SamplePhase.RUNNING
_COMPLETED, _GRADED = SamplePhase.COMPLETED, SamplePhase.GRADED


Rule = Callable[[RunState, Any, int], object]
"""Arguments: state, event, number of the event."""
_RULES: dict[type, tuple[Rule | None, bool]] = dict.fromkeys(EVENT_CLASSES, (None, False))
"""Event type or partial form to its rule, and whether it is progress of a run. `_fold` handles some types itself.

Completions and rewards are progress. Prompts and requests are not: they may pile up while nothing processes them.
"""
_RULES |= dict.fromkeys((TurnBegun, TurnRecorded, SessionOpened, SessionSealed), (None, True))
_RULES[WeightsStored] = lambda state, event, position: state.to_store.pop(event.version, None), True


def _rule(kind: type[Event], *, moves: bool = False) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        _RULES[kind] = rule, moves
        return rule

    return register


@_rule(RunStarted)
def _run_started(state: RunState, event: RunStarted, position: int) -> None:
    """Begin a run. A branch starts from its parent's version and cursors, without open groups; counts start at 0."""
    state.phase = RunPhase.RUNNING
    if (branched := event.branched) is not None:
        state.branched = structs.replace(branched, draws=UNSET)  # `DrawStats` folds them
        state.version = state.next_step = branched.version
        state.weights_digest, state.optimizer_digest = branched.weights_digest, branched.optimizer_digest
        state.cursors = dict(branched.cursors)


@_rule(RunResumed)
def _run_resumed(state: RunState, event: RunResumed, position: int) -> None:
    state.phase, state.failure, state.activated = RunPhase.RUNNING, "", {}


@_rule(RunFinished)
def _run_finished(state: RunState, event: RunFinished, position: int) -> None:
    state.phase = RunPhase.FINISHED


@_rule(RunFailed)
def _run_failed(state: RunState, event: RunFailed, position: int) -> None:
    state.phase, state.failure = RunPhase.FAILED, event.reason


@_rule(PlacementPlanned)
def _placement_planned(state: RunState, event: PlacementPlanned, position: int) -> None:
    state.placement = event


@_rule(PromptOffered)
def _prompt_offered(state: RunState, event: PromptOffered, position: int) -> None:
    if event.group not in state.groups:  # else its prompt is already submitted
        state.offered = state.offers
        state.offered[event.group] = position


@_rule(PromptSubmitted)
def _prompt_submitted(state: RunState, event: PromptSubmitted, position: int) -> None:
    group = GroupState(
        group=event.group,
        prompt=event.tokens,
        position=position,
        purpose=event.purpose,
        dataset=event.dataset,
        source_path=event.source.path,
        text=event.text,
        label=event.label,
        metadata=event.metadata,
        recalled=event.recalled or UNSET,
        share=event.share or UNSET,
    )
    state.groups[event.group] = group
    state.offers.pop(event.group, None)
    if event.purpose is _TRAIN:
        state.wait(group)
        if event.priority:
            state.priorities = {} if state.priorities is UNSET else state.priorities
            state.priorities[event.group] = event.priority
        state.counts.prompts_submitted += 1
        state.advance(event.source.path, event.source.offset)
        if state.function is not UNSET and event.dataset not in (INBOX, BROUGHT):
            state.function.drawn += 1
        return
    version = event.version if event.version is not None else state.published
    group.version = version
    state.begin(group)
    key = evaluation_id(event.dataset, version)
    state.evals_begun[event.dataset] = max(version, state.evals_begun.get(event.dataset, -1))
    state.evals.setdefault(key, EvalState(dataset=event.dataset, version=version)).groups.append(event.group)


@_rule(PromptRejected)
def _prompt_rejected(state: RunState, event: PromptRejected, position: int) -> None:
    state.counts.prompts_rejected += 1
    state.offers.pop(event.group, None)
    if event.dataset == TRAIN:  # an evaluation may read the same file and has no cursor
        state.advance(event.source.path, event.source.offset)


@_rule(PromptWanted)
def _prompts_wanted(state: RunState, event: PromptWanted, position: int) -> None:
    state.function = state.by_function
    state.function.wanted = max(state.function.wanted, event.total)


@_rule(RolloutReturned, moves=True)
def _rollout_returned(state: RunState, event: RolloutReturned, position: int) -> None:
    function = state.function = state.by_function
    if event.evaluation:
        function.evaluated = max(function.evaluated, event.step)
        return
    function.next = event.step + 1
    function.returned[event.step] = list(event.groups)
    function.dropped += [group for group in event.dropped if group in state.groups]


@_rule(RolloutProgressed, moves=True)
def _rollout_progressed(state: RunState, event: RolloutProgressed, position: int) -> None:
    sample = state.changed_sample(event.sample)
    if sample is not None:
        sample.phase = _RUNNING
        sample.length = event.start + event.tokens.n
        sample.add_spans(event.spans)


@_rule(RolloutSuspended)
def _rollout_suspended(state: RunState, event: RolloutSuspended, position: int) -> None:
    sample = state.changed_sample(event.sample)
    if sample is not None:
        sample.phase, sample.length = SamplePhase.SUSPENDED, event.length
        sample.suspensions += 1
        state.counts.suspensions += 1


@_rule(RolloutFailed, moves=True)
def _rollout_failed(state: RunState, event: RolloutFailed, position: int) -> None:
    sample = state.changed_sample(event.sample)
    if sample is not None:
        sample.phase, sample.failed_as, sample.failure = SamplePhase.FAILED, event.kind, event.message
        sample.failures += 1
        state.counts.samples_failed += 1


@_rule(RewardFailed, moves=True)
def _reward_failed(state: RunState, event: RewardFailed, position: int) -> None:
    sample = state.changed_sample(event.sample)
    if sample is not None:
        sample.phase, sample.failure = SamplePhase.UNGRADED, f"{event.kind}: {event.message}"
        state.counts.rewards_failed += 1


@_rule(GroupAccepted, moves=True)
def _group_accepted(state: RunState, event: GroupAccepted, position: int) -> None:
    group = state.groups.get(event.group)
    if group is not None:
        group.phase, group.rewards = GroupPhase.ACCEPTED, event.rewards
        state.change(group)
        state.accepted.append(event.group)
        state.broken_in_a_row = state.outside_in_a_row = 0
        state.counts.groups_accepted += 1


@_rule(GroupRejected, moves=True)
def _group_rejected(state: RunState, event: GroupRejected, position: int) -> None:
    requested = _leaves_function(state, event.group)
    if (group := state.leave(event.group)) is not None:
        if requested:
            state.counts.groups_rejected += 1
            state.broken_in_a_row = 0 if event.cause is RejectionCause.FILTER else state.broken_in_a_row + 1
            state.outside_in_a_row = state.outside_in_a_row + (group.dataset == INBOX) if state.broken_in_a_row else 0
        state.rejections[event.cause] = state.rejections.get(event.cause, 0) + 1


def _leaves_function(state: RunState, name: str) -> bool:
    """Remove a group from what a rollout function returned or dropped. Returns whether the group was requested."""
    group = state.groups.get(name)
    if group is None or state.function is UNSET:
        return True
    state.function.leave(name)
    if group.phase is not _SUBMITTED:
        return True
    state.end_wait(name)
    return False


@_rule(BatchSealed, moves=True)
def _batch_sealed(state: RunState, event: BatchSealed, position: int) -> None:
    state.next_step = event.step + 1
    if state.follows:  # the groups belong to the followed run
        state.sealed[event.step] = SealedState(groups=(), digest=event.digest)
        return
    if state.function is not UNSET:
        state.function.returned.pop(event.step, None)
    taken = set(event.groups)
    state.accepted = [group for group in state.accepted if group not in taken]
    for group in event.groups:
        state.groups[group].phase = GroupPhase.SEALED
        state.change(state.groups[group])
    state.sealed[event.step] = SealedState(groups=event.groups, digest=event.digest)
    state.batch_starts[event.step] = min((state.groups[group].position for group in event.groups), default=position)


@_rule(StepCommitted, moves=True)
def _step_committed(state: RunState, event: StepCommitted, position: int) -> None:
    sealed = state.sealed.pop(event.step, None)
    for group in sealed.groups if sealed else ():
        state.leave(group)
        state.counts.groups_trained += 1
    state.version = event.version
    state.weights_digest, state.optimizer_digest = event.weights_digest, event.optimizer_digest
    if not event.stored:
        state.unstored = {**state.to_store, event.version: event.weights_digest}


@_rule(WeightsPublished, moves=True)
def _weights_published(state: RunState, event: WeightsPublished, position: int) -> None:
    state.published = event.version
    state.version = max(state.version, event.version)
    state.weights_digest = event.digest


@_rule(WeightsActivated, moves=True)
def _weights_activated(state: RunState, event: WeightsActivated, position: int) -> None:
    state.activated[event.engine] = event.version


@_rule(EvalCompleted, moves=True)
def _eval_completed(state: RunState, event: EvalCompleted, position: int) -> None:
    done = state.evals.pop(event.entity(), None)
    for group in done.groups if done else ():
        state.leave(group)
    state.eval_means[event.dataset] = event.mean


@_rule(CheckpointSaved, moves=True)
def _checkpoint_saved(state: RunState, event: CheckpointSaved, position: int) -> None:
    state.counts.checkpoints += 1
    state.batch_starts = {step: start for step, start in state.batch_starts.items() if step >= event.version}


@_rule(ArchiveSealed)
def _archive_sealed(state: RunState, event: ArchiveSealed, position: int) -> None:
    state.counts.segments += 1


@_rule(WorkerLost)
def _worker_lost(state: RunState, event: WorkerLost, position: int) -> None:
    state.activated.pop(event.worker, None)


def apply(state: RunState, recorded: Recorded) -> None:
    """Fold an event in. Every event is counted, and the chain hashes all its bytes."""
    _fold(state, (recorded.envelope,), recorded.position)
    state.chain = hashlib.sha256(bytes.fromhex(state.chain) + recorded.data).hexdigest()


def apply_all(state: RunState, parts: Iterable[tuple[int, Sequence[FoldedEvent]]], chain: str) -> None:
    """Fold in parts of events, each with its first log position. chain: sha256 over all events up to the last, hex."""
    for first, events in parts:
        _fold(state, events, first)
    state.chain = chain


def _fold(state: RunState, events: Sequence[FoldedEvent], first: int) -> None:
    """Fold events in order, from log position `first` on. `position` counts events, as all positions in a state.

    Three types, nine of ten events, are handled without a call, which would add a twentieth of the time.
    """
    position, moved, groups, completed, tokens = state.events, state.moved, state.groups, 0, 0
    changed = state.changed_groups
    state.foreign = first - 1 - position
    for position, entry in enumerate(events, state.events + 1):
        event = entry.event
        kind = type(event)
        if kind is Rewarded or kind is RewardAssigned:
            moved = position
            group = groups.get(event.group)
            sample = group.samples.get(event.sample) if group is not None else None
            if sample is not None:
                sample.phase, sample.reward = _GRADED, event.value
                if changed is not None:
                    changed[event.group] = None
        elif kind is Completed or kind is RolloutCompleted:
            moved = position
            if event.rollout:
                _join(state, event)
            group = groups.get(event.group)
            sample = group.samples.get(event.sample) if group is not None else None
            if group is not None and sample is not None:
                sample.phase, sample.stop, sample.length = _COMPLETED, event.stop, event.length
                sample.digest = event.digest
                sample.add_spans(event.spans)
                if changed is not None:
                    changed[event.group] = None
                if group.purpose is _TRAIN:
                    completed += 1
                    tokens += event.length
                else:
                    state.counts.eval_samples += 1
        elif kind is Requested or kind is RolloutRequested:
            group = groups.get(event.group)
            if group is not None:
                if group.phase is _SUBMITTED:
                    _take_up(state, group, event.min_version)
                if changed is not None:
                    changed[event.group] = None
                sample = group.samples.get(event.sample)
                if sample is None:
                    group.samples[event.sample] = SampleState(
                        sample=event.sample, attempt=event.attempt, requested_at=entry.at, min_version=event.min_version
                    )
                else:
                    sample.attempt, sample.phase, sample.requested_at = event.attempt, _REQUESTED, entry.at
                    sample.min_version = event.min_version
        else:
            rule, moves = _RULES[kind]
            if rule is not None:
                rule(state, event, position)
            if moves:
                moved = position
    state.events, state.moved = position, moved
    state.counts.samples_completed += completed
    state.counts.response_tokens += tokens


def _take_up(state: RunState, group: GroupState, version: int) -> None:
    """Fold in the first request of a group."""
    group.phase = GroupPhase.REQUESTED
    if group.purpose is _TRAIN:
        group.order, group.version = state.counts.groups_requested, version
        state.counts.groups_requested += 1
        state.end_wait(group.group)


def _join(state: RunState, event: RolloutCompleted) -> None:
    """Add a further sample of a rollout to its group, in the order of indices."""
    requested = state.changed_sample(event.rollout)
    if requested is not None:
        samples = state.groups[event.group].samples
        samples[event.sample] = SampleState(
            sample=event.sample, attempt=event.attempt, min_version=requested.min_version
        )
        state.groups[event.group].samples = dict(sorted(samples.items(), key=lambda item: order_in_group(item[0])))


_RULES |= {short: _RULES[kind] for kind, short in (PARTIAL_EVENTS | PARTIAL_DECISIONS).items()}
