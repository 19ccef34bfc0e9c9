"""What a `History` is made of: samples, groups, steps and versions, each with all that was said about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from schemas.batches import BatchSealed
from schemas.checkpoints import CheckpointSaved
from schemas.groups import GroupAccepted, GroupRejected
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import RolloutCompleted, RolloutFailed, RolloutRequested, RolloutSuspended, WeightSpan
from schemas.steps import StepCommitted
from schemas.turns import TurnRecorded
from schemas.weights import WeightsActivated, WeightsPublished

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
