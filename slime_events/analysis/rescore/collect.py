"""`Collector`: decided groups, batches and evaluations in the log's order, as records of the read model.

A group leaves the memory as soon as it is decided, so that a long run takes no more of it. So this calls the model's
handlers itself, with the events as they are, and does not decode events that rescoring does not need.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from schemas.batches import BatchSealed
from schemas.codec import decode
from schemas.evals import EvalCompleted
from schemas.event import Event, Purpose, type_of
from schemas.groups import GroupAccepted, GroupRejected
from schemas.ids import group_of
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import RolloutCompleted, RolloutRequested
from slime_events.analysis.model.records import HANDLERS, Entry, Group, Run, Sample

Item = Group | BatchSealed | EvalCompleted
NEEDED: tuple[type[Event], ...] = (
    PromptSubmitted, RolloutCompleted, RewardAssigned, RewardFailed, GroupAccepted, GroupRejected, BatchSealed,
    EvalCompleted,
)  # fmt: skip
NEEDED_TAGS = frozenset(map(type_of, NEEDED))
REQUESTED = type_of(RolloutRequested)


class Collector:
    """Groups have their completed samples alone, in order. graders: name and source digest of the recorded graders."""

    def __init__(self, run: str) -> None:
        self.graders: Counter[tuple[str, str]] = Counter()
        self._run = Run(run)
        self._evaluations: dict[tuple[str, int], list[str]] = {}

    def apply(self, subject: str, data: bytes) -> Iterator[Item]:
        """Take one stored event in; the items that are complete by it."""
        _, _, noun, verb, entity = subject.split(".")
        tag = f"{noun}.{verb}"
        if tag == REQUESTED:
            self._requested(group_of(entity))
        if tag not in NEEDED_TAGS:
            return
        envelope = decode(data)
        event = envelope.event
        if isinstance(event, BatchSealed):
            yield event
        elif isinstance(event, EvalCompleted):
            for name in self._evaluations.pop((event.dataset, event.version), ()):
                yield from self._taken(name)
            yield event
        elif not isinstance(event, RolloutCompleted) or event.group in self._run.groups:
            HANDLERS[type(event)](self._run, Entry(event, 0, envelope.at, envelope.producer, self._run.run))
        if isinstance(event, PromptSubmitted) and event.purpose is Purpose.EVAL:
            self._evaluations.setdefault((event.dataset, event.version or 0), []).append(event.group)
        elif isinstance(event, RewardAssigned) and event.sample in self._run.samples:
            self.graders[event.grader, event.grader_digest] += 1
        elif isinstance(event, GroupAccepted | GroupRejected):
            yield from self._taken(event.group)

    @property
    def undecided(self) -> int:
        """Training groups without a verdict so far."""
        return sum(not is_evaluation(group) for group in self._run.groups.values())

    def _requested(self, name: str) -> None:
        """The subject has all that is needed of a request: whose group it is."""
        group = self._run.groups.get(name)
        if group is not None and group.order < 0 and not is_evaluation(group):
            group.order = self._run.requested
            self._run.requested += 1

    def _taken(self, name: str) -> Iterator[Group]:
        group = self._run.forget(name)
        if group is not None and group.prompt is not None:
            group.samples = {sample.sample: sample for sample in group.members}
            yield group


def prompt_of(group: Group) -> PromptSubmitted:
    """Every collected group has one."""
    assert group.prompt is not None
    return group.prompt.event


def completed_of(sample: Sample) -> RolloutCompleted:
    """Every collected sample is completed."""
    assert sample.completed is not None
    return sample.completed.event


def is_evaluation(group: Group) -> bool:
    """Whether nothing is trained on it."""
    return prompt_of(group).purpose is Purpose.EVAL
