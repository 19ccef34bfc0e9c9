"""`GroupState` and `SampleState`: an open group, folded from the log."""

import enum
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from schemas.arrays import Array
from schemas.doc import doc
from schemas.event import Purpose
from schemas.ids import order_in_group
from schemas.prompts import PromptSubmitted
from schemas.recorded import Recalled
from schemas.rollouts import FailureKind, StopReason, WeightSpan


class GroupPhase(enum.StrEnum):
    """Stage of a group. Trained and rejected groups leave the state and remain only in its counts."""

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
    """The range of weight versions that made some tokens."""

    oldest: Annotated[int | None, doc("None before the first token")] = None
    newest: Annotated[int | None, doc("None before the first token")] = None

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
    """Data that users' functions left on a sample."""

    metadata: Annotated[dict[str, Any], doc("set by the generate function and hooks, without the prompt's")] = {}
    attributes: Annotated[dict[str, Any], doc("further attributes that they set")] = {}
    graded: Annotated[dict[str, Any], doc("metadata set by the grader")] = {}
    versions: Annotated[tuple[int, ...], doc("weight version of each span, if the sample has several")] = ()


class SampleState(VersionRange, kw_only=True, gc=False):
    """A sample of an open group. A folded state has no texts: `Texts` adds them for a filter."""

    sample: str
    attempt: int = 0
    phase: SamplePhase = SamplePhase.REQUESTED
    requested_at: Annotated[int, doc("UTC nanoseconds")] = 0
    min_version: Annotated[int, doc("lowest weight version that its newest request allows")] = -1
    length: Annotated[int, doc("response tokens in the log")] = 0
    stop: Annotated[StopReason | None, doc("why generation ended; None: it has not")] = None
    digest: Annotated[str, doc("`content_digest` of the response")] = ""
    reward: float | None = None
    failures: Annotated[int, doc("number of failures")] = 0
    failed_as: FailureKind | None = None
    failure: Annotated[str, doc("message of the newest failure")] = ""
    suspensions: Annotated[int, doc("number of suspensions")] = 0
    text: Annotated[str | msgspec.UnsetType, doc("response; UNSET in a folded state")] = msgspec.UNSET
    prompt_text: Annotated[
        str | msgspec.UnsetType, doc("prompt, if it differs from the group's; UNSET in a folded state")
    ] = msgspec.UNSET
    left: Annotated[Left | msgspec.UnsetType, doc("UNSET in a folded state")] = msgspec.UNSET


class GroupState(msgspec.Struct, kw_only=True, gc=False):
    """An open group. Fields that are UNSET do not change the digests of states that do not use them."""

    group: str
    prompt: Array
    position: Annotated[int, doc("position of its prompt")] = 0
    purpose: Purpose = Purpose.TRAIN
    dataset: str = "train"
    source_path: str = ""
    phase: GroupPhase = GroupPhase.SUBMITTED
    order: Annotated[int, doc("index among requested training groups; -1: not requested")] = -1
    version: Annotated[int, doc("weights at its request; in an evaluation, the weights under evaluation")] = -1
    text: str = ""
    label: Annotated[Any, doc("JSON value")] = None
    metadata: Annotated[Any, doc("JSON value")] = {}
    samples: Annotated[dict[str, SampleState], doc("by id, in the order of indices")] = {}
    rewards: Annotated[tuple[float, ...], doc("rewards that it was accepted with")] = ()
    recalled: Annotated[Recalled | msgspec.UnsetType, doc("recorded rollouts that it reuses; UNSET: none")] = (
        msgspec.UNSET
    )
    share: Annotated[
        str | msgspec.UnsetType, doc("source whose share of a batch it counts to; UNSET: the run's own prompts")
    ] = msgspec.UNSET
    asked: Annotated[
        PromptSubmitted | msgspec.UnsetType,
        doc("its prompt event, if that has further fields; UNSET in a folded state"),
    ] = msgspec.UNSET

    @property
    def graded(self) -> tuple[float, ...]:
        """Rewards assigned so far, in the order of indices."""
        return tuple([float(sample.reward) for sample in self.samples.values() if sample.reward is not None])

    @property
    def rollout_rewards(self) -> list[float]:
        """A reward per rollout, in the order of indices, which its samples share. All samples must be graded."""
        first: dict[int, float] = {}
        for sample in self.samples.values():
            if sample.reward is not None:
                first.setdefault(order_in_group(sample.sample)[0], sample.reward)
        return list(first.values())

    @property
    def answers(self) -> list[float]:
        """The reward of the first sample of each rollout, in the order of indices; 0 without a reward."""
        return [sample.reward or 0.0 for sample in self.samples.values() if not order_in_group(sample.sample)[1]]

    @property
    def oldest(self) -> int:
        """The oldest weight version in it. A sample without tokens counts with its requested version."""
        versions = [s.min_version if s.oldest is None else s.oldest for s in self.samples.values()]
        return min(versions, default=self.version)
