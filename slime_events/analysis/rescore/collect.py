"""`Gathering`: groups with all that was said of them, batches and evaluations, in the order they were decided in.

A fold of the log that lets go of a group as soon as it is decided, so that a long run takes no more memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from schemas.batches import BatchSealed
from schemas.evals import EvalCompleted
from schemas.event import Purpose
from schemas.groups import GroupAccepted, GroupRejected
from schemas.ids import group_of, place_of
from slime_events.analysis.rescore.partial_events import (
    CompletedFields,
    FailureFields,
    PromptFields,
    RewardFields,
    read_fields,
)


class Rollout(msgspec.Struct, gc=False):
    """A completed rollout. place: in its group. reward: as recorded, None with `failure` where its grading failed."""

    completed: CompletedFields
    place: tuple[int, int]
    reward: float | None = None
    failure: str = ""


@dataclass(slots=True)
class Group:
    """A group that was decided, or is an evaluation's. order: the how-manieth training group that was asked for.

    rollouts: those that completed, in their group's order once it is handed out. verdict: None for an evaluation's.
    """

    prompt: PromptFields
    order: int = -1
    rollouts: dict[str, Rollout] = field(default_factory=dict)
    verdict: GroupAccepted | GroupRejected | None = None

    @property
    def is_evaluation(self) -> bool:
        """Whether nothing is trained on it."""
        return self.prompt.purpose is Purpose.EVAL


Item = Group | BatchSealed | EvalCompleted


class Gathering:
    """See the module. graders: name and source digest of those who graded, as the log says."""

    def __init__(self) -> None:
        self.graders: dict[tuple[str, str], int] = {}
        self._groups: dict[str, Group] = {}
        self._evaluations: dict[tuple[str, int], list[str]] = {}
        self._asked = 0

    def apply(self, subject: str, data: bytes) -> Iterator[Item]:
        """Take one stored event in; what is complete by it."""
        _, _, noun, verb, entity = subject.split(".")
        tag = f"{noun}.{verb}"
        if tag == "rollout.requested":
            self._requested(group_of(entity))
            return
        event = read_fields(tag, data)
        if isinstance(event, CompletedFields):
            if group := self._groups.get(event.group):
                group.rollouts[event.sample] = Rollout(event, place_of(event.sample))
        elif isinstance(event, RewardFields | FailureFields):
            self._graded(event)
        elif isinstance(event, PromptFields):
            self._submitted(event)
        elif isinstance(event, GroupAccepted | GroupRejected):
            if group := self._take(event.group):
                group.verdict = event
                yield group
        elif isinstance(event, BatchSealed):
            yield event
        elif isinstance(event, EvalCompleted):
            for name in self._evaluations.pop((event.dataset, event.version), ()):
                if group := self._take(name):
                    yield group
            yield event

    @property
    def undecided(self) -> int:
        """Training groups without a verdict so far."""
        return sum(1 for group in self._groups.values() if not group.is_evaluation)

    def _submitted(self, prompt: PromptFields) -> None:
        self._groups[prompt.group] = Group(prompt)
        if prompt.purpose is Purpose.EVAL:
            self._evaluations.setdefault((prompt.dataset, prompt.version or 0), []).append(prompt.group)

    def _requested(self, name: str) -> None:
        group = self._groups.get(name)
        if group is not None and group.order < 0 and not group.is_evaluation:
            group.order = self._asked
            self._asked += 1

    def _graded(self, event: RewardFields | FailureFields) -> None:
        group = self._groups.get(event.group)
        rollout = group.rollouts.get(event.sample) if group else None
        if rollout is None:
            return
        if isinstance(event, FailureFields):
            rollout.failure = f"{event.kind}: {event.message}"
            return
        rollout.reward = event.value
        key = event.grader, event.grader_digest
        self.graders[key] = self.graders.get(key, 0) + 1

    def _take(self, name: str) -> Group | None:
        group = self._groups.pop(name, None)
        if group is not None:
            group.rollouts = dict(sorted(group.rollouts.items(), key=lambda item: item[1].place))
        return group
