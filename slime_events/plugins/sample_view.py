"""Rollouts as slime's `Sample`s: what a user's generate function, grader or filter is shown.

As in slime `sample.prompt` is a text for all of them: what the model reads, after the chat template where there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from schemas.ids import place_of
from schemas.rollouts import RolloutRequested, StopReason, WeightSpan
from slime_events.core.state.group import GroupState, SampleState
from slime_events.core.trajectory import Trajectory
from slime_events.plugins.prompt_text import Answered, Submitted, prompt_text
from slime_events.plugins.sample import Sample, Status

STATUS = {StopReason.STOP: Status.COMPLETED, StopReason.LENGTH: Status.TRUNCATED, StopReason.ABORT: Status.ABORTED}


def group_samples(
    group: GroupState, trajectories: Mapping[str, Trajectory] | None = None
) -> list[Sample | list[Sample]]:
    """The rollouts of a decided group, in index order; with tokens and log-probs where trajectories are given.

    A rollout that became several samples is a list of them, as in slime.
    """
    rollouts: dict[int, list[Sample]] = {}
    for state in group.samples.values():
        index, _ = place_of(state.sample)
        sample = _with_tokens(_from_state(group, state, index), (trajectories or {}).get(state.sample))
        rollouts.setdefault(index, []).append(sample)
    return [samples if len(samples) > 1 else samples[0] for samples in rollouts.values()]


def _from_state(group: GroupState, state: SampleState, index: int) -> Sample:
    return Sample(
        group_index=group.order,
        index=index,
        prompt=group.text if state.prompt_text is msgspec.UNSET else state.prompt_text,
        response=state.text,
        response_length=state.length,
        label=group.label,
        reward=state.reward,
        weight_versions=[str(v) for v in sorted({state.oldest, state.newest} - {None}, key=int)],  # type: ignore[arg-type]
        status=STATUS.get(state.stop, Status.PENDING) if state.stop else Status.PENDING,
        metadata=dict(group.metadata),
    )


def _with_tokens(sample: Sample, trajectory: Trajectory | None) -> Sample:
    if trajectory is not None:
        sample.tokens = trajectory.tokens.tolist()
        sample.rollout_log_probs = trajectory.log_probs.tolist()
        sample.loss_mask = None if trajectory.loss_mask is None else trajectory.loss_mask.tolist()
    return sample


class Completed(Answered, Protocol):
    """What a grader is shown of a completed rollout: `RolloutCompleted`, or those of its fields."""

    @property
    def sample(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def length(self) -> int: ...
    @property
    def spans(self) -> tuple[WeightSpan, ...]: ...
    @property
    def stop(self) -> StopReason: ...
    @property
    def metadata(self) -> dict[str, Any]: ...


class Asked(Submitted, Protocol):
    """What it is shown of the prompt: `PromptSubmitted`, or those of its fields."""

    @property
    def label(self) -> str | None: ...
    @property
    def metadata(self) -> dict[str, Any]: ...


def completed_sample(completed: Completed, asked: Asked) -> Sample:
    """A completed rollout as its grader sees it, live and when it is rescored."""
    return Sample(
        index=place_of(completed.sample)[0],
        prompt=prompt_text(asked, completed),
        response=completed.text,
        response_length=completed.length,
        label=asked.label,
        weight_versions=[str(span.version) for span in completed.spans],
        status=STATUS[completed.stop],
        metadata=asked.metadata | completed.metadata,
        session_id=completed.sample,
    )


def sample_to_make(request: RolloutRequested, asked: Asked) -> Sample:
    """A rollout that is asked for, as a generate function is given it."""
    return Sample(
        index=request.index,
        prompt=asked.text,
        label=asked.label,
        metadata=dict(asked.metadata),
        session_id=request.sample,
    )
