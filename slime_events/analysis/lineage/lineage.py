"""`Lineage`: one answer for every question, made of versions, steps, groups and samples that name each other.

version -> step (`Step.version`) -> samples (`Step.samples`) -> prompt (`Sample.group`) -> line (`Group.source`)
sample  -> the versions that made it (`Sample.spans`), the one that it was trained into, and all that come of that

A step or version is named by its number alone: along the runs of one lineage each number is there once. The exception
is `made_by` of a learner's samples, which names versions of the sample's `run`. All times are UTC nanoseconds. What has
not happened, or is not in the log, is null.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.event import Event, Purpose
from schemas.groups import GroupAccepted, GroupRejected
from schemas.prompts import Source
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import Origin, RolloutCompleted, StopReason, WeightSpan
from slime_events.analysis import model
from slime_events.analysis.model.agent_session import AgentSession
from slime_events.analysis.model.ancestry import JoinedRun, VersionRange
from slime_events.core.batch_columns import BatchMasks
from slime_events.core.trajectory import Fetch


class Kind(enum.StrEnum):
    """What a question is about."""

    VERSION = "version"
    STEP = "step"
    SAMPLE = "sample"
    GROUP = "group"
    SOURCE = "source"


class Element(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the answer."""


class Asked(Element, frozen=True, kw_only=True):
    """The question. depth: how many steps back from a version or step; 0 for all."""

    kind: Kind
    value: str
    depth: int = 1


class Version(Element, frozen=True, kw_only=True):
    """One set of weights. step: that made it, from version `parent`; null for weights that a run begins with.
    approximate_since: the newest version before it that a trainer of the run went on from with an approximate
    optimizer: training again from before that one does not come to these weights.
    """

    version: int
    run: str
    parent: int | None = None
    step: int | None = None
    digest: str | None = None
    url: str | None = None
    published_at: int | None = None
    approximate_since: int | None = None

    @classmethod
    def of(cls, record: model.Version, run: str, approximate: Iterable[int]) -> Version:
        """Of a version that was published or committed. run: that made it. approximate: versions that the run went on
        from with an approximate optimizer.
        """
        before = record.version - 1 if record.version else None
        return cls(
            version=record.version,
            run=run,
            parent=before,
            step=before,
            digest=record.digest,
            url=record.published.event.url if record.published else None,
            published_at=record.published.at if record.published else None,
            approximate_since=max((version for version in approximate if version < record.version), default=None),
        )


class Command(Element, frozen=True, kw_only=True):
    """A call of a client that a step is made of. samples: generations that its datums are made of, as far as known:
    from the client (`Datum.with_provenance`), or because a datum is a whole one.
    """

    command: str
    kind: str
    loss: str = ""
    source: str
    datums: int = 0
    samples: tuple[str, ...] = ()
    given_at: int


class Step(Element, frozen=True, kw_only=True):
    """One training step: `version` came of `parent` and these samples, in training order, or of a client's commands.

    version: the one that it makes; committed_at is null while it has not. rewards: as graded. tokens: prompts and
    responses. oldest_version: of those that made its tokens. run: whose log has the batch.
    """

    step: int
    run: str
    parent: int
    version: int
    groups: tuple[str, ...]
    samples: tuple[str, ...]
    rewards: tuple[float, ...]
    oldest_version: int
    batch_digest: str
    sealed_at: int
    committed_at: int | None = None
    weights_digest: str | None = None
    optimizer_digest: str | None = None
    tokens: int | None = None
    commands: tuple[Command, ...] = ()

    @classmethod
    def of(cls, record: model.Step, commands: tuple[Command, ...] = ()) -> Step:
        """Of a sealed step."""
        sealed, committed = record.sealed, record.committed
        return cls(
            step=record.step,
            run=sealed.run,
            parent=record.step,
            version=record.step + 1,
            rewards=sealed.event.raw_rewards,
            batch_digest=sealed.event.digest,
            sealed_at=sealed.at,
            committed_at=committed.at if committed else None,
            commands=commands,
            **_same(sealed.event, "groups", "samples", "oldest_version"),
            **_same(committed.event if committed else None, "weights_digest", "optimizer_digest", "tokens"),
        )

    @property
    def mean_reward(self) -> float:
        """Of its samples; 0 for an empty batch."""
        return sum(self.rewards) / len(self.rewards) if self.rewards else 0.0


class Decision(Element, frozen=True, kw_only=True):
    """The filter decision on a group. cause: who refused it. run: whose log it is in."""

    accepted: bool
    run: str
    at: int
    filter: str
    filter_digest: str
    reason: str | None = None
    cause: str | None = None
    figures: dict[str, float] = {}

    @classmethod
    def of(cls, entry: model.Entry[GroupAccepted] | model.Entry[GroupRejected]) -> Decision:
        """Of a verdict."""
        verdict = entry.event
        return cls(
            accepted=isinstance(verdict, GroupAccepted),
            run=entry.run,
            at=entry.at,
            cause=None if isinstance(verdict, GroupAccepted) else verdict.cause.value,
            **_same(verdict, "filter", "filter_digest", "reason", "figures"),
        )


class Group(Element, frozen=True, kw_only=True):
    """One prompt and the group of samples that answer it. run: whose log it is in. step: whose batch it is in."""

    group: str
    run: str
    dataset: str
    purpose: Purpose
    source: Source
    text: str
    label: Any
    submitted_at: int
    samples: tuple[str, ...] = ()
    decision: Decision | None = None
    step: int | None = None

    @classmethod
    def of(cls, record: model.Group, samples: tuple[str, ...], step: int | None) -> Group:
        """Of a group whose prompt is there."""
        assert record.prompt is not None
        return cls(
            run=record.prompt.run,
            submitted_at=record.prompt.at,
            samples=samples,
            decision=Decision.of(record.verdict) if record.verdict else None,
            step=step,
            **_same(record.prompt.event, "group", "dataset", "purpose", "source", "text", "label"),
        )

    @property
    def file(self) -> str:
        """The name of its file."""
        return PurePosixPath(self.source.path).name or self.source.path

    @property
    def file_line(self) -> str:
        """`train.jsonl:960`, or `inbox:key of team`."""
        of = f" of {self.source.sender}" if self.source.sender else ""
        return f"{self.file}:{self.source.line or self.source.key}".rstrip(":") + of


class Reward(Element, frozen=True, kw_only=True):
    """A grader's result. value: null where it failed, for the reason in `failure`."""

    grader: str
    grader_digest: str
    value: float | None = None
    failure: str | None = None

    @classmethod
    def of(cls, event: RewardAssigned | RewardFailed) -> Reward:
        """Of a grader's event."""
        if isinstance(event, RewardAssigned):
            return cls(grader=event.grader, grader_digest=event.grader_digest, value=event.value)
        failure = f"{event.kind.value}: {event.message}"
        return cls(grader=event.grader, grader_digest=event.grader_digest, failure=failure)


class Mask(Element, frozen=True, kw_only=True):
    """Which response tokens are trained on: `trained` of `tokens`, those in the half-open ranges."""

    tokens: int
    trained: int
    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, mask: npt.NDArray[np.int8]) -> Mask:
        """mask: [response], 1 = trained on."""
        edges = np.flatnonzero(np.diff(np.concatenate(([0], (mask != 0).astype(np.int8), [0])))).reshape(-1, 2)
        ranges = tuple((int(begin), int(end)) for begin, end in edges)
        return cls(tokens=len(mask), trained=sum(end - begin for begin, end in ranges), ranges=ranges)


class Advantage(Element, frozen=True, kw_only=True):
    """As the run's estimator computes it: of the first trained token, and of the last, which is the same but for
    discounts.

    left_out: what the trainer also puts in and cannot be had from rewards alone: `kl` (the penalty needs log-probs),
    and then `whitening`, which comes after it.
    """

    estimator: str
    first: float
    last: float
    left_out: tuple[str, ...] = ()


class Sample(Element, frozen=True, kw_only=True):
    """One rollout. run: whose log it is in. asked_version: the oldest weights that it might be begun with.

    spans: [start, end, version] over the response: the weights of `run` that made its tokens; made_by: those versions.
    reward: as graded; normalised: over its group, as its batch has it. step: that trained it, into version
    trained_into; descendants: all versions since, which come of that one. origin: of a recorded rollout of another run,
    which has the weights that made it; spans are then what these count as here, and made_by names none. prompt: its own
    as text, where a generate function gave it another than its group's (empty where an older log lacks the text).
    """

    sample: str
    group: str
    run: str
    asked_version: int | None = None
    seed: int | None = None
    attempts: int = 0
    length: int = 0
    stop: StopReason | None = None
    digest: str | None = None
    spans: tuple[WeightSpan, ...] = ()
    made_by: tuple[int, ...] = ()
    mask: Mask | None = None
    reward: Reward | None = None
    normalised: float | None = None
    advantage: Advantage | None = None
    step: int | None = None
    trained_into: int | None = None
    descendants: tuple[VersionRange, ...] = ()
    origin: Origin | None = None
    prompt: str | None = None

    @classmethod
    def of(cls, record: model.Sample, fetch: Fetch, **trained: Any) -> Sample:
        """Of a sample that was requested, or came with one that was. trained: the fields of its part in a batch, and
        `masks`, where it is in one.
        """
        masks = trained.pop("masks", None)
        request, spans = record.requests[-1] if record.requests else None, record.spans
        done = record.completed.event if record.completed else None
        entry = record.completed or request
        return cls(
            sample=record.sample,
            group=record.group,
            run=entry.run if entry else "",
            asked_version=request.event.min_version if request else None,
            seed=request.event.seed if request else None,
            attempts=request.event.attempt + 1 if request else 0,
            length=done.length if done else max((span.end for span in spans), default=0),
            spans=spans,
            made_by=() if done and done.origin else tuple(sorted({span.version for span in spans})),
            mask=Mask.of(mask_of(done, fetch, masks)) if done else None,
            reward=Reward.of(record.reward.event) if record.reward else None,
            prompt=done.prompt_text if done and done.prompt else None,
            **_same(done, "stop", "digest", "origin"),
            **trained,
        )


class Lineage(Element, frozen=True, kw_only=True):
    """newest: the newest version of the run that was asked. line: all versions up to it, by the run that made them.
    ancestors: those that the version asked about comes of; descendants: those that come of it. branches: runs beside
    this one that go on from it. sessions: of agents, that the samples came of or that were tried for them. notes: a
    sentence each.
    """

    run: str
    asked: Asked
    newest: int
    runs: tuple[JoinedRun, ...]
    line: tuple[VersionRange, ...] = ()
    versions: tuple[Version, ...] = ()
    ancestors: tuple[VersionRange, ...] = ()
    descendants: tuple[VersionRange, ...] = ()
    branches: tuple[JoinedRun, ...] = ()
    steps: tuple[Step, ...] = ()
    groups: tuple[Group, ...] = ()
    samples: tuple[Sample, ...] = ()
    sessions: tuple[AgentSession, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def samples_descendants(self) -> tuple[VersionRange, ...]:
        """Versions that come of the samples: those of the sample that was trained first."""
        each = (sample.descendants for sample in self.samples)
        return max(each, key=lambda ranges: sum(one.count for one in ranges), default=())

    def session_of(self, sample: Sample) -> AgentSession | None:
        """The session that a sample came of."""
        return next((one for one in self.sessions if one.run == sample.run and sample.sample in one.samples), None)

    def on_line(self, run: str, version: int) -> bool:
        """Whether a version that `run` made is one that the newest comes of: those of a run that was branched from or
        is followed are not, after the join.
        """
        joins = [one.version for one in self.runs if one.parent == run and one.version is not None]
        return not joins or version <= min(joins)


def _same(event: Event | None, *names: str) -> dict[str, Any]:
    """Fields that a part has under the names of an event; none before there is one."""
    return {} if event is None else {name: getattr(event, name) for name in names}


def mask_of(done: RolloutCompleted, fetch: Fetch, masks: BatchMasks | None = None) -> npt.NDArray[np.int8]:
    """int8 [response], 1 = trained on. masks: of its batch."""
    own = None if done.loss_mask is None else fetch(done.loss_mask)
    if masks is not None:
        return masks.of(done.sample, own, done.length)
    return np.ones(done.length, np.int8) if own is None else own
