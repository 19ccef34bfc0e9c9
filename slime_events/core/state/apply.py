"""`apply` and `apply_all`: recorded events onto a `RunState`. Nothing else changes a state."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from schemas.batches import BatchSealed
from schemas.checkpoints import CheckpointSaved
from schemas.evals import EvalCompleted
from schemas.event import Purpose
from schemas.groups import GroupAccepted, GroupRejected
from schemas.ids import place_of
from schemas.registry import EVENT_CLASSES
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import RolloutCompleted, RolloutFailed, RolloutProgressed, RolloutRequested
from schemas.steps import StepCommitted
from schemas.turns import TurnBegun, TurnRecorded
from schemas.weights import WeightsActivated, WeightsPublished
from slime_events.core.state.group import GroupPhase, GroupState, SamplePhase, SampleState
from slime_events.core.state.partial_events import SHORT, SHORT_DECISIONS, Completed, Requested, Rewarded, Told
from slime_events.core.state.rules import RULES, Rule, sample_of
from slime_events.core.state.run import RunState
from storage.log import Recorded

MOVES = (
    RolloutProgressed,
    RolloutFailed,
    TurnBegun,
    TurnRecorded,
    RewardFailed,
    GroupAccepted,
    GroupRejected,
    BatchSealed,
    StepCommitted,
    WeightsPublished,
    WeightsActivated,
    EvalCompleted,
    CheckpointSaved,
)
"""What brings a run on, beside completions and rewards. Prompts and requests do not: they may pile up while nobody
works on them.
"""

# Looked up once: what is done a million times would spend much of its time on finding its enums' members.
_TRAIN, _SUBMITTED = Purpose.TRAIN, GroupPhase.SUBMITTED
_REQUESTED, _COMPLETED, _GRADED = SamplePhase.REQUESTED, SamplePhase.COMPLETED, SamplePhase.GRADED


def apply(state: RunState, recorded: Recorded) -> None:
    """Fold one event in. Every event counts and chains with all its bytes, also those that change nothing else."""
    _fold(state, (recorded.envelope,), recorded.position)
    state.chain = hashlib.sha256(bytes.fromhex(state.chain) + recorded.data).hexdigest()


def apply_all(state: RunState, told: Iterable[Sequence[Told]], chain: str) -> None:
    """Fold in what follows, as events or as their short forms. chain: sha256 over all up to the last (hex)."""
    for events in told:
        _fold(state, events, state.events + 1)
    state.chain = chain


def _fold(state: RunState, events: Sequence[Told], first: int) -> None:
    """In order, from position `first` on. What nine of ten events say is dealt with in the loop itself: a call for each
    of them takes a twentieth of the time.
    """
    position, moved, groups, completed, tokens = first - 1, state.moved, state.groups, 0, 0
    for position, told in enumerate(events, first):
        event = told.event
        kind = type(event)
        if kind is Rewarded or kind is RewardAssigned:
            moved = position
            group = groups.get(event.group)
            sample = group.samples.get(event.sample) if group is not None else None
            if sample is not None:
                sample.phase, sample.reward = _GRADED, event.value
        elif kind is Completed or kind is RolloutCompleted:
            moved = position
            if event.rollout:
                _join(state, event)
            group = groups.get(event.group)
            sample = group.samples.get(event.sample) if group is not None else None
            if group is not None and sample is not None:
                sample.phase, sample.stop, sample.length = _COMPLETED, event.stop, event.length
                sample.text, sample.digest = event.text, event.digest
                sample.saw(event.spans)
                if event.prompt_text:
                    sample.prompt_text = event.prompt_text
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
                sample = group.samples.get(event.sample)
                if sample is None:
                    group.samples[event.sample] = SampleState(
                        sample=event.sample, attempt=event.attempt, requested_at=told.at, min_version=event.min_version
                    )
                else:
                    sample.attempt, sample.phase, sample.requested_at = event.attempt, _REQUESTED, told.at
                    sample.min_version = event.min_version
        else:
            rule, moves = _RULES[kind]
            if rule is not None:
                rule(state, event, told.at, position)
            if moves:
                moved = position
    state.events, state.moved = position, moved
    state.counts.samples_completed += completed
    state.counts.response_tokens += tokens


def _take_up(state: RunState, group: GroupState, version: int) -> None:
    """The first request of a group."""
    group.phase = GroupPhase.REQUESTED
    if group.purpose is _TRAIN:
        group.order, group.version = state.counts.groups_requested, version
        state.counts.groups_requested += 1
        state.waiting.remove(group.group)


def _join(state: RunState, event: RolloutCompleted) -> None:
    """A further sample of a rollout joins its group, at its place."""
    asked_for = sample_of(state, event.rollout)
    if asked_for is not None:
        samples = state.groups[event.group].samples
        samples[event.sample] = SampleState(
            sample=event.sample, attempt=event.attempt, min_version=asked_for.min_version
        )
        state.groups[event.group].samples = dict(sorted(samples.items(), key=lambda item: place_of(item[0])))


_RULES: dict[type, tuple[Rule | None, bool]] = {kind: (RULES.get(kind), kind in MOVES) for kind in EVENT_CLASSES}
_RULES |= {short: _RULES[kind] for kind, short in (SHORT | SHORT_DECISIONS).items()}
"""Of every other event and short form: what it does to a state, and whether it brings the run on."""
