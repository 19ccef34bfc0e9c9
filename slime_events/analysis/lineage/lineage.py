"""`Lineage`: the answer to any question, made of versions, steps, groups and samples that name each other.

version -> step (`Step.version`) -> samples (`Step.samples`) -> prompt (`Sample.group`) -> line (`Group.source`)
sample  -> the versions that made it (`Sample.spans`), the version trained on it, and all that derive from that

A step or version is named by its number alone: along the runs of one lineage each number occurs once. The exception is
`made_by` of a learner's samples, which names versions of the sample's `run`. All times are UTC nanoseconds. A field is
null if it has not happened, or is not in the log.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Annotated, Any, TypedDict, Unpack

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.doc import doc
from schemas.event import Event, Purpose
from schemas.groups import GroupAccepted, GroupRejected
from schemas.prompts import Source
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import Origin, RolloutCompleted, StopReason, WeightSpan
from slime_events import model
from slime_events.core.tokens.trajectory import Fetch
from slime_events.core.training.batch_columns import BatchMasks
from slime_events.model.agent_session import AgentSession
from slime_events.model.ancestry import JoinedRun, VersionRange


class Kind(enum.StrEnum):
    """Subject of a question."""

    VERSION = "version"
    STEP = "step"
    SAMPLE = "sample"
    GROUP = "group"
    SOURCE = "source"


class Element(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an answer."""


class LineageQuery(Element, frozen=True, kw_only=True):
    """A question about a run."""

    kind: Annotated[Kind, doc("subject")]
    value: Annotated[str, doc("number of a version or step, id of a sample or group, or a source line")]
    depth: Annotated[int, doc("number of steps back from a version or step; 0: all")] = 1


class Version(Element, frozen=True, kw_only=True):
    """One set of weights."""

    version: Annotated[int, doc("number of the version")]
    run: Annotated[str, doc("run that made it")]
    parent: Annotated[int | None, doc("version from which it was trained; null if the run starts from it")] = None
    step: Annotated[int | None, doc("step that made it")] = None
    digest: Annotated[str | None, doc("digest of all tensors")] = None
    url: Annotated[str | None, doc("URL of its folder")] = None
    published_at: Annotated[int | None, doc("UTC [ns]")] = None
    approximate_since: Annotated[
        int | None,
        doc(
            "newest version before it from which a trainer resumed with an approximate optimizer: retraining from an "
            "earlier version does not reproduce these weights"
        ),
    ] = None

    @classmethod
    def of(cls, record: model.Version, run: str, approximate: Iterable[int]) -> Version:
        """Return a version that was published or committed. run: the run that made it. approximate: versions from which
        the run resumed with an approximate optimizer.
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
    """A client's call from which a step was made."""

    command: Annotated[str, doc("name of the call")]
    kind: Annotated[str, doc("kind of the call")]
    loss: Annotated[str, doc("name of the loss function")] = ""
    source: Annotated[str, doc("source of the client")]
    datums: Annotated[int, doc("number of datums")] = 0
    samples: Annotated[
        tuple[str, ...],
        doc(
            "generations in its datums, as far as the client names them (`Datum.with_provenance`) or a datum "
            "is a whole one"
        ),
    ] = ()
    given_at: Annotated[int, doc("UTC [ns]")]


class Step(Element, frozen=True, kw_only=True):
    """One training step: `version` was trained from `parent`, on these samples or by a client's commands."""

    step: Annotated[int, doc("number of the step, from 0")]
    run: Annotated[str, doc("run whose log has the batch")]
    parent: Annotated[int, doc("version from which it trains")]
    version: Annotated[int, doc("version that it makes")]
    groups: Annotated[tuple[str, ...], doc("ids of the batch's groups")]
    samples: Annotated[tuple[str, ...], doc("ids of the batch's samples, in training order")]
    rewards: Annotated[tuple[float, ...], doc("reward of each sample, as graded")]
    oldest_version: Annotated[int, doc("oldest version that made a token of it")]
    batch_digest: Annotated[str, doc("sha256, hex")]
    sealed_at: Annotated[int, doc("UTC [ns]")]
    committed_at: Annotated[int | None, doc("UTC [ns]; null until the step is committed")] = None
    weights_digest: Annotated[str | None, doc("sha256 after the step, hex")] = None
    optimizer_digest: Annotated[str | None, doc("sha256 after the step, hex")] = None
    tokens: Annotated[int | None, doc("trained tokens, prompts included")] = None
    commands: Annotated[tuple[Command, ...], doc("commands of a client, if they made the batch")] = ()

    @classmethod
    def of(cls, record: model.Step, commands: tuple[Command, ...] = ()) -> Step:
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
            **_fields(sealed.event, "groups", "samples", "oldest_version"),
            **_fields(committed.event if committed else None, "weights_digest", "optimizer_digest", "tokens"),
        )

    @property
    def mean_reward(self) -> float:
        """Mean reward of its samples; 0 for an empty batch."""
        return sum(self.rewards) / len(self.rewards) if self.rewards else 0.0


class Decision(Element, frozen=True, kw_only=True):
    """The verdict on a group."""

    accepted: Annotated[bool, doc("whether the group is trained on")]
    run: Annotated[str, doc("run whose log has it")]
    at: Annotated[int, doc("UTC [ns]")]
    filter: Annotated[str, doc("path of the filter, or `none`")]
    filter_digest: Annotated[str, doc("sha256 of its source, hex")]
    reason: Annotated[str | None, doc("reason of the filter, or the failure")] = None
    cause: Annotated[str | None, doc("cause of a rejection")] = None
    figures: Annotated[dict[str, float], doc("figures on which it is based")] = {}

    @classmethod
    def of(cls, entry: model.Entry[GroupAccepted] | model.Entry[GroupRejected]) -> Decision:
        verdict = entry.event
        return cls(
            accepted=isinstance(verdict, GroupAccepted),
            run=entry.run,
            at=entry.at,
            cause=None if isinstance(verdict, GroupAccepted) else verdict.cause.value,
            **_fields(verdict, "filter", "filter_digest", "reason", "figures"),
        )


class Group(Element, frozen=True, kw_only=True):
    """One prompt and the group of samples that answer it."""

    group: Annotated[str, doc("id of the group")]
    run: Annotated[str, doc("run whose log has the prompt")]
    dataset: Annotated[str, doc("`train`, `inbox`, or the evaluation's name")]
    purpose: Annotated[Purpose, doc("why it was generated")]
    source: Annotated[Source, doc("file and line, or sender and key")]
    text: Annotated[str, doc("prompt as the model sees it")]
    label: Annotated[Any, doc("right answer, if there is one")]
    submitted_at: Annotated[int, doc("UTC [ns]")]
    samples: Annotated[tuple[str, ...], doc("ids of its samples")] = ()
    decision: Annotated[Decision | None, doc("verdict on it")] = None
    step: Annotated[int | None, doc("step whose batch has it")] = None

    @classmethod
    def of(cls, record: model.Group, samples: tuple[str, ...], step: int | None) -> Group:
        """Return a group whose prompt is in the log."""
        assert record.prompt is not None
        return cls(
            run=record.prompt.run,
            submitted_at=record.prompt.at,
            samples=samples,
            decision=Decision.of(record.verdict) if record.verdict else None,
            step=step,
            **_fields(record.prompt.event, "group", "dataset", "purpose", "source", "text", "label"),
        )

    @property
    def file(self) -> str:
        """Name of its file."""
        return PurePosixPath(self.source.path).name or self.source.path

    @property
    def file_line(self) -> str:
        """File and line, or key and sender: `train.jsonl:960`, `inbox:key of team`."""
        of = f" of {self.source.sender}" if self.source.sender else ""
        return f"{self.file}:{self.source.line or self.source.key}".rstrip(":") + of


class Reward(Element, frozen=True, kw_only=True):
    """A grader's result."""

    grader: Annotated[str, doc("name or path of the grader")]
    grader_digest: Annotated[str, doc("sha256 of its source, hex")]
    value: Annotated[float | None, doc("reward as graded; null if grading failed")] = None
    failure: Annotated[str | None, doc("why grading failed")] = None

    @classmethod
    def of(cls, event: RewardAssigned | RewardFailed) -> Reward:
        if isinstance(event, RewardAssigned):
            return cls(grader=event.grader, grader_digest=event.grader_digest, value=event.value)
        failure = f"{event.kind.value}: {event.message}"
        return cls(grader=event.grader, grader_digest=event.grader_digest, failure=failure)


class Mask(Element, frozen=True, kw_only=True):
    """Response tokens that are trained on."""

    tokens: Annotated[int, doc("response length [tokens]")]
    trained: Annotated[int, doc("number of trained tokens")]
    ranges: Annotated[tuple[tuple[int, int], ...], doc("half-open ranges of trained tokens")]

    @classmethod
    def of(cls, mask: npt.NDArray[np.int8]) -> Mask:
        """Return the ranges of a loss mask [response], 1 = trained on."""
        edges = np.flatnonzero(np.diff(np.concatenate(([0], (mask != 0).astype(np.int8), [0])))).reshape(-1, 2)
        ranges = tuple((int(begin), int(end)) for begin, end in edges)
        return cls(tokens=len(mask), trained=sum(end - begin for begin, end in ranges), ranges=ranges)


class Advantage(Element, frozen=True, kw_only=True):
    """Advantage by the run's estimator. `first` and `last` differ only if the estimator discounts."""

    estimator: Annotated[str, doc("name of the estimator")]
    first: Annotated[float, doc("advantage of the first trained token")]
    last: Annotated[float, doc("advantage of the last trained token")]
    left_out: Annotated[
        tuple[str, ...],
        doc(
            "terms of the trainer that do not follow from rewards: `kl` (its penalty needs log-probs), and then "
            "`whitening`, which comes after it"
        ),
    ] = ()


class BatchPart(TypedDict, total=False):
    """Fields of a sample from its batch."""

    step: int
    normalised: float
    trained_into: int | None
    advantage: Advantage | None
    descendants: tuple[VersionRange, ...]


class Sample(Element, frozen=True, kw_only=True):
    """One rollout."""

    sample: Annotated[str, doc("id of the sample")]
    group: Annotated[str, doc("id of its group")]
    run: Annotated[str, doc("run whose log has it")]
    asked_version: Annotated[int | None, doc("oldest weights that its last request allows")] = None
    seed: Annotated[int | None, doc("sampling seed")] = None
    attempts: Annotated[int, doc("number of attempts")] = 0
    length: Annotated[int, doc("response length [tokens]")] = 0
    stop: Annotated[StopReason | None, doc("how it ended")] = None
    digest: Annotated[str | None, doc("sha256 of tokens and log-probs, hex")] = None
    spans: Annotated[tuple[WeightSpan, ...], doc("[start, end, version] over the response, in this run's numbers")] = ()
    made_by: Annotated[tuple[int, ...], doc("versions of `run` that made its tokens; none for a recorded rollout")] = ()
    mask: Annotated[Mask | None, doc("response tokens that are trained on")] = None
    reward: Annotated[Reward | None, doc("result of its grader")] = None
    normalised: Annotated[float | None, doc("reward normalised over its group, as in its batch")] = None
    advantage: Annotated[Advantage | None, doc("its advantage")] = None
    step: Annotated[int | None, doc("step that trained on it")] = None
    trained_into: Annotated[int | None, doc("version made by that step")] = None
    descendants: Annotated[tuple[VersionRange, ...], doc("versions that derive from that one")] = ()
    origin: Annotated[Origin | None, doc("for a recorded rollout, the run and weights that made it")] = None
    prompt: Annotated[str | None, doc("its own prompt from a generate function (empty in some older logs)")] = None

    @classmethod
    def of(
        cls, record: model.Sample, fetch: Fetch, masks: BatchMasks | None = None, **trained: Unpack[BatchPart]
    ) -> Sample:
        """Return a sample that was requested, or that came with a requested one. trained: fields from its batch."""
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
            **_fields(done, "stop", "digest", "origin"),
            **trained,
        )


class Lineage(Element, frozen=True, kw_only=True):
    """An answer."""

    run: Annotated[str, doc("name of the queried run")]
    asked: Annotated[LineageQuery, doc("the question")]
    newest: Annotated[int, doc("newest version of the run")]
    runs: Annotated[tuple[JoinedRun, ...], doc("the runs that were opened, the oldest first")]
    line: Annotated[tuple[VersionRange, ...], doc("all versions up to the newest, by the run that made them")] = ()
    versions: Annotated[tuple[Version, ...], doc("versions in the answer")] = ()
    ancestors: Annotated[tuple[VersionRange, ...], doc("versions from which the queried version derives")] = ()
    descendants: Annotated[tuple[VersionRange, ...], doc("versions that derive from the queried version")] = ()
    branches: Annotated[tuple[JoinedRun, ...], doc("runs that branched off from this one")] = ()
    steps: Annotated[tuple[Step, ...], doc("steps in the answer")] = ()
    groups: Annotated[tuple[Group, ...], doc("groups in the answer")] = ()
    samples: Annotated[tuple[Sample, ...], doc("samples in the answer")] = ()
    sessions: Annotated[tuple[AgentSession, ...], doc("agents' sessions that made the samples, or tried to")] = ()
    notes: Annotated[tuple[str, ...], doc("remarks, one sentence each")] = ()

    @property
    def samples_descendants(self) -> tuple[VersionRange, ...]:
        """Versions that derive from the samples: those of the sample that was trained on first."""
        each = (sample.descendants for sample in self.samples)
        return max(each, key=lambda ranges: sum(part.count for part in ranges), default=())

    def session_of(self, sample: Sample) -> AgentSession | None:
        """Return the session that made a sample."""
        return next((s for s in self.sessions if s.run == sample.run and sample.sample in s.samples), None)

    def on_line(self, run: str, version: int) -> bool:
        """Return whether the newest version derives from a version of `run`. After the join, versions of a parent or of
        a followed run do not count.
        """
        joins = [other.version for other in self.runs if other.parent == run and other.version is not None]
        return not joins or version <= min(joins)


def _fields(event: Event | None, *names: str) -> dict[str, Any]:
    """Return the fields that have the same name in an event; none if there is no event."""
    return {} if event is None else {name: getattr(event, name) for name in names}


def mask_of(done: RolloutCompleted, fetch: Fetch, masks: BatchMasks | None = None) -> npt.NDArray[np.int8]:
    """Return the loss mask of a completed rollout, int8 [response], 1 = trained on. masks: those of its batch."""
    own = None if done.loss_mask is None else fetch(done.loss_mask)
    if masks is not None:
        return masks.of(done.sample, own, done.length)
    return np.ones(done.length, np.int8) if own is None else own
