"""Groups as slime's `Sample`s: what a user's filter or grader is shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from schemas.prompts import PromptSubmitted
from schemas.rollouts import RolloutCompleted, StopReason, WeightSpan
from schemas.sample_ids import place_of
from slime_events.sample import Sample, Status
from slime_events.state.group import GroupState, SampleState
from slime_events.trajectory import Trajectory

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
        prompt=group.text,
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


class Completed(Protocol):
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


def sample_to_grade(
    event: Completed,
    *,
    index: int,
    prompt: str | list[dict[str, Any]],
    label: str | None,
    metadata: dict[str, Any],
) -> Sample:
    """A completed rollout as its grader sees it."""
    return Sample(
        index=index,
        prompt=prompt,
        response=event.text,
        response_length=event.length,
        label=label,
        weight_versions=[str(span.version) for span in event.spans],
        status=STATUS[event.stop],
        metadata=dict(metadata),
        session_id=event.sample,
    )


def completed_sample(completed: RolloutCompleted, prompt: PromptSubmitted) -> Sample:
    """The same of a rollout that is in the log beside its prompt, or about to be."""
    return sample_to_grade(
        completed,
        index=place_of(completed.sample)[0],
        prompt=prompt.messages or prompt.text,
        label=prompt.label,
        metadata=prompt.metadata | completed.metadata,
    )
