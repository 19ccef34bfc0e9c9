"""`Collector`: decided groups, batches and evaluations in the log's order, as records of the read model.

A group leaves the memory once it is decided, so memory does not grow with the run. Events are folded as they are
stored, and only those that rescoring needs are decoded.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from schemas.arrays import Array
from schemas.batches import BatchSealed
from schemas.codec import WholeEnvelope, decode_whole
from schemas.envelope import Envelope
from schemas.evals import EvalCompleted
from schemas.event import Event, Purpose, type_of
from schemas.groups import GroupAccepted, GroupRejected
from schemas.ids import group_of, order_in_group
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import (
    Place,
    RolloutCompleted,
    RolloutProgressed,
    RolloutRequested,
    StopReason,
    WeightSpan,
)
from schemas.sessions import SessionSealed
from schemas.turns import TurnRecorded
from slime_events.algorithms.credit import SealedSessions
from slime_events.core.tokens.trajectory import FOLDED, Fetch, Trajectories
from slime_events.model.records import Entry, Group, Run, Sample

Item = Group | BatchSealed | EvalCompleted
NEEDED: dict[str, type[Event]] = {
    type_of(kind): kind
    for kind in (
        PromptSubmitted, RolloutRequested, RolloutCompleted, RewardAssigned, RewardFailed, GroupAccepted, GroupRejected,
        BatchSealed, EvalCompleted,
    )
}  # fmt: skip
"""Needed events, by the tag in an event's subject."""


class _Completed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The fields of a completion that rescoring needs. Decoding the others would take as much time again."""

    sample: str
    group: str
    length: int
    stop: StopReason
    text: str
    spans: tuple[WeightSpan, ...]
    loss_mask: Array | None = None
    rollout: str = ""
    prompt: Array | None = None
    prompt_text: str = ""
    metadata: dict[str, Any] = {}
    attributes: dict[str, Any] = {}
    place: Place | None = None
    credit: Array | None = None


def _event_decoder(kind: type) -> Callable[[bytes], Any]:
    """Return a decoder of stored events of one type, which skips the envelope."""
    return msgspec.msgpack.Decoder(msgspec.defstruct("_Stored", [("schema", int), ("event", kind)], gc=False)).decode


_DECODERS = {RewardAssigned: _event_decoder(RewardAssigned), RolloutCompleted: _event_decoder(_Completed)}
_EMPTY: list[Any] = []
"""Requests, turns and interruptions of every sample, which are not read here: creating three lists per sample takes
long.
"""
SESSION_EVENTS: dict[str, type[Event]] = {type_of(kind): kind for kind in (TurnRecorded, SessionSealed)}


class Collector:
    """A fold of the log into items. Groups have only their completed samples, in order.

    fetch: for graders that see tokens. trajectories: then those of the groups so far, until they are dropped. recredit:
    collect sessions too; the user of a group drops its sessions. graders: name and source digest of the recorded
    graders.
    """

    def __init__(self, run: str, fetch: Fetch | None = None, *, recredit: bool = False) -> None:
        self.graders: Counter[tuple[str, str]] = Counter()
        self.trajectories = None if fetch is None else Trajectories(fetch)
        self.sessions = SealedSessions() if recredit else None
        self._needed = NEEDED | SESSION_EVENTS if recredit else NEEDED
        if fetch is not None:
            self._needed = self._needed | {type_of(RolloutProgressed): RolloutProgressed}
        self._kinds: dict[str, type[Event] | None] = {}
        self._run = Run(run)
        self._evaluations: dict[tuple[str, int], list[str]] = {}

    def apply(self, subject: str, data: bytes) -> Iterable[Item]:
        """Take in one stored event, and yield the items that it completes."""
        head, _, entity = subject.rpartition(".")
        kind = self._kinds[head] if head in self._kinds else self._kind_of(head)
        if self.trajectories is not None and kind in FOLDED:
            self.trajectories.apply(decode_whole(data).event, 0)
        if kind is RolloutRequested:  # the subject has the only fact needed: the group
            group = self._run.groups.get(group_of(entity))
            if group is not None and group.order < 0 and not is_evaluation(group):
                group.order = self._run.requested
                self._run.requested += 1
        elif kind is RewardAssigned:
            self._assigned(self._read(kind, data))
        elif kind is RolloutCompleted:
            self._completed(self._read(kind, data))
        elif self.sessions is not None and (kind is TurnRecorded or kind is SessionSealed):
            self.sessions.apply(decode_whole(data).event)
        elif kind is not None and kind is not RolloutProgressed:
            return self._applied(decode_whole(data))
        return ()

    def _kind_of(self, head: str) -> type[Event] | None:
        """Return the needed event type of subjects that begin with `head`, if any. Looked up once per type."""
        kind = self._kinds[head] = self._needed.get(head.split(".", 2)[2])
        return kind

    def _read(self, kind: type[Event], data: bytes) -> Any:
        """Return an event of a sample. Without `trajectories` the tokens of a completion are not decoded, which saves
        half of the time.
        """
        if self.trajectories is None:
            try:
                stored = _DECODERS[kind](data)
            except msgspec.DecodeError:
                return decode_whole(data).event  # of an older schema, or damaged: the codec tells which
            if stored.schema == kind.SCHEMA:
                return stored.event
        return decode_whole(data).event

    def _assigned(self, event: RewardAssigned) -> None:
        sample = self._run.samples.get(event.sample)
        if sample is not None:  # else its group is already decided
            self.graders[event.grader, event.grader_digest] += 1
            sample.reward = Entry(event, 0, 0, "", self._run.run)

    def _completed(self, event: Any) -> None:
        run, name = self._run, event.sample
        group = run.groups.get(event.group)
        if group is None:
            return  # the group was decided without this sample
        sample = run.samples.get(name)
        if sample is None:
            sample = Sample(name, event.group, order_in_group(name)[0], _EMPTY, 0, 0, _EMPTY, (), _EMPTY)
            run.samples[name] = group.samples[name] = sample
        sample.completed, sample.length, sample.spans = Entry(event, 0, 0, "", run.run), event.length, event.spans

    def _applied(self, envelope: Envelope | WholeEnvelope) -> Iterator[Item]:
        event, run = envelope.event, self._run
        match event:
            case BatchSealed():
                yield event
                return
            case EvalCompleted():
                for name in self._evaluations.pop((event.dataset, event.version), ()):
                    yield from self._taken(name)
                yield event
                return
            case PromptSubmitted() if event.purpose is Purpose.EVAL:
                self._evaluations.setdefault((event.dataset, event.version or 0), []).append(event.group)
        run.add(Entry(event, 0, envelope.at, envelope.producer, run.run))
        if isinstance(event, GroupAccepted | GroupRejected):
            yield from self._taken(event.group)

    @property
    def undecided(self) -> int:
        """Number of training groups without a verdict so far."""
        return sum(not is_evaluation(group) for group in self._run.groups.values())

    def _taken(self, name: str) -> Iterator[Group]:
        group = self._run.forget(name)
        if group is not None and group.prompt is not None:
            group.samples = {sample.sample: sample for sample in group.members}
            yield group


def prompt_of(group: Group) -> PromptSubmitted:
    """Return the prompt of a collected group, which always has one."""
    assert group.prompt is not None
    return group.prompt.event


def completed_of(sample: Sample) -> RolloutCompleted:
    """Return the completion of a collected sample, which always has one."""
    assert sample.completed is not None
    return sample.completed.event


def is_evaluation(group: Group) -> bool:
    """Return whether the group belongs to an evaluation, so that it is not trained on."""
    return prompt_of(group).purpose is Purpose.EVAL
