"""`GroupState` and `SampleState`: an open group, folded from the log."""

import enum
from collections.abc import Iterable
from typing import Any

import msgspec

from schemas.arrays import Array
from schemas.event import Purpose
from schemas.ids import order_in_group
from schemas.prompts import PromptSubmitted
from schemas.recorded import Recalled
from schemas.rollouts import FailureKind, StopReason, WeightSpan


class GroupPhase(enum.StrEnum):
    """Stage of a group. Trained and rejected groups leave the state; only counts remain of them."""

    SUBMITTED = "submitted"
    REQUESTED = "requested"
    ACCEPTED = "accepted"
    SEALED = "sealed"


class SamplePhase(enum.StrEnum):
    """Stage of a sample."""

    REQUESTED = "requested"
    RUNNING = "running"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    GRADED = "graded"
    FAILED = "failed"
    UNGRADED = "ungraded"


class VersionRange(msgspec.Struct, kw_only=True, gc=False):
    """oldest, newest: weight versions over some tokens; None before the first token."""

    oldest: int | None = None
    newest: int | None = None

    def add_spans(self, spans: Iterable[WeightSpan]) -> None:
        """Widen the range by the versions of these spans."""
        for span in spans:
            version = span.version
            if self.oldest is None or self.newest is None:
                self.oldest = self.newest = version
            elif version < self.oldest:
                self.oldest = version
            elif version > self.newest:
                self.newest = version


class Left(msgspec.Struct, frozen=True):
    """What users' code left on a sample. metadata: of its generate function and hooks, beside the prompt's; attributes:
    its other fields; graded: metadata of its grader. versions: of the weights, one for each span of a sample that has
    several.
    """

    metadata: dict[str, Any] = {}
    attributes: dict[str, Any] = {}
    graded: dict[str, Any] = {}
    versions: tuple[int, ...] = ()


class SampleState(VersionRange, kw_only=True, gc=False):
    """One sample. min_version: the weights of its newest request. length: response tokens in the log. failures,
    suspensions: how often it failed and was suspended. text, prompt_text (of a sample with a prompt of its own), left:
    UNSET in a folded state; `Texts` puts them into what a filter is shown.
    """

    sample: str
    attempt: int = 0
    phase: SamplePhase = SamplePhase.REQUESTED
    requested_at: int = 0
    min_version: int = -1
    length: int = 0
    stop: StopReason | None = None
    digest: str = ""
    reward: float | None = None
    failures: int = 0
    failed_as: FailureKind | None = None
    failure: str = ""
    suspensions: int = 0
    text: str | msgspec.UnsetType = msgspec.UNSET
    prompt_text: str | msgspec.UnsetType = msgspec.UNSET
    left: Left | msgspec.UnsetType = msgspec.UNSET


class GroupState(msgspec.Struct, kw_only=True, gc=False):
    """One group. position: of its prompt in the log. order: index among requested training groups. version: the weights
    when it was requested; of an evaluation, the weights that it evaluates. recalled: of a group that reuses recorded
    rollouts; UNSET elsewhere, so that the digests of states without one do not change, and so is share, of prompts
    from outside. asked: its prompt, where that has more than the fields here; UNSET in a folded state, as are texts.
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
    label: Any = None
    metadata: Any = {}
    samples: dict[str, SampleState] = {}
    rewards: tuple[float, ...] = ()
    recalled: Recalled | msgspec.UnsetType = msgspec.UNSET
    share: str | msgspec.UnsetType = msgspec.UNSET
    asked: PromptSubmitted | msgspec.UnsetType = msgspec.UNSET

    @property
    def graded(self) -> tuple[float, ...]:
        """Rewards assigned so far, in index order."""
        return tuple([float(sample.reward) for sample in self.samples.values() if sample.reward is not None])

    @property
    def rollout_rewards(self) -> list[float]:
        """One reward per rollout, in index order: its samples share it. All samples must be graded."""
        first: dict[int, float] = {}
        for sample in self.samples.values():
            if sample.reward is not None:
                first.setdefault(order_in_group(sample.sample)[0], sample.reward)
        return list(first.values())

    @property
    def answers(self) -> list[float]:
        """The reward of each rollout, in index order, as that of its first sample; 0 where it has none."""
        return [sample.reward or 0.0 for sample in self.samples.values() if not order_in_group(sample.sample)[1]]

    @property
    def oldest(self) -> int:
        """The oldest weight version in it. A sample without tokens counts with the version that was requested."""
        versions = [s.min_version if s.oldest is None else s.oldest for s in self.samples.values()]
        return min(versions, default=self.version)
