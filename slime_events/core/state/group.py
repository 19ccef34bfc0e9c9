"""`GroupState` and `SampleState`: an open group, as the log has it so far."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any

import msgspec

from schemas.arrays import Array
from schemas.event import Purpose
from schemas.ids import place_of
from schemas.recorded import Recalled
from schemas.rollouts import FailureKind, StopReason, WeightSpan


class GroupPhase(enum.StrEnum):
    """Where a group stands. Trained and rejected groups leave the state; only counts remain of them."""

    SUBMITTED = "submitted"
    REQUESTED = "requested"
    ACCEPTED = "accepted"
    SEALED = "sealed"


class SamplePhase(enum.StrEnum):
    """Where a sample stands."""

    REQUESTED = "requested"
    RUNNING = "running"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    GRADED = "graded"
    FAILED = "failed"
    UNGRADED = "ungraded"


class SampleState(msgspec.Struct, kw_only=True, gc=False):
    """One sample. min_version: the weights that were asked for last. length: response tokens in the log. oldest,
    newest: weight versions over them. failures, suspensions: how often it failed, and rested. prompt_text: of one
    with a prompt of its own; there is no such field in the state of any other, so its digest is as ever.
    """

    sample: str
    attempt: int = 0
    phase: SamplePhase = SamplePhase.REQUESTED
    requested_at: int = 0
    min_version: int = -1
    length: int = 0
    oldest: int | None = None
    newest: int | None = None
    stop: StopReason | None = None
    text: str = ""
    digest: str = ""
    reward: float | None = None
    failures: int = 0
    failed_as: FailureKind | None = None
    failure: str = ""
    suspensions: int = 0
    prompt_text: str | msgspec.UnsetType = msgspec.UNSET

    def saw(self, spans: Iterable[WeightSpan]) -> None:
        """Widen the range of weight versions over its tokens."""
        for span in spans:
            version = span.version
            if self.oldest is None or self.newest is None:
                self.oldest = self.newest = version
            elif version < self.oldest:
                self.oldest = version
            elif version > self.newest:
                self.newest = version


class GroupState(msgspec.Struct, kw_only=True, gc=False):
    """One group. position: of its prompt in the log. order: the how-manieth requested. version: the weights when it was
    requested (an evaluation's: of). recalled: of one whose rollouts are recorded ones; there is no such field in
    the state of any other, so its digest is as ever.
    """

    group: str
    prompt: Array
    position: int = 0
    purpose: Purpose = Purpose.TRAIN
    dataset: str = "train"
    source_path: str = ""
    phase: GroupPhase = GroupPhase.SUBMITTED
    order: int = -1
    version: int = -1
    text: str = ""
    label: str | None = None
    metadata: dict[str, Any] = {}
    samples: dict[str, SampleState] = {}
    rewards: tuple[float, ...] = ()
    recalled: Recalled | msgspec.UnsetType = msgspec.UNSET

    @property
    def graded(self) -> tuple[float, ...]:
        """The rewards there are, in index order."""
        return tuple([float(sample.reward) for sample in self.samples.values() if sample.reward is not None])

    @property
    def rollout_rewards(self) -> list[float]:
        """One per rollout, in index order: samples of one rollout share its reward. All must be graded."""
        first: dict[int, float] = {}
        for sample in self.samples.values():
            if sample.reward is not None:
                first.setdefault(place_of(sample.sample)[0], sample.reward)
        return list(first.values())

    @property
    def oldest(self) -> int:
        """The oldest weight version that is or may come to be in it: a sample without tokens may get the requested."""
        versions = [s.min_version if s.oldest is None else s.oldest for s in self.samples.values()]
        return min(versions, default=self.version)
