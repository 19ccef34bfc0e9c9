"""`Ungraded`: completed samples that have no reward yet. The grader's whole state, folded from the log."""

from __future__ import annotations

from collections.abc import Iterator

from schemas.evals import EvalCompleted
from schemas.event import Event, Purpose
from schemas.groups import GroupAccepted, GroupRejected
from schemas.ids import is_of_evaluation
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import RolloutCompleted, RolloutRequested
from slime_events.plugins.sample import Sample
from slime_events.plugins.sample_view import completed_sample
from storage.log import Recorded

FOLDED: tuple[type[Event], ...] = (
    PromptSubmitted,
    RolloutCompleted,
    RewardAssigned,
    RewardFailed,
    GroupAccepted,
    GroupRejected,
    EvalCompleted,
)
"""What every `Ungraded` is made of; one of whole groups also of what was asked for."""


class Ungraded:
    """Samples to grade, by group. whole_groups: a group is due only when all that was asked for of it is there.

    folded: the types of events that it is made of. It passes over any other, so nobody need bring it more.
    """

    def __init__(self, *, whole_groups: bool) -> None:
        self._whole_groups = whole_groups
        self.folded: tuple[type[Event], ...] = (*FOLDED, RolloutRequested) if whole_groups else FOLDED
        self._prompts: dict[str, PromptSubmitted] = {}
        self._asked: dict[str, set[str]] = {}
        self._completed: dict[str, dict[str, Recorded]] = {}
        self._taken: set[str] = set()
        self._fresh: dict[str, None] = {}

    def apply(self, recorded: Recorded) -> None:
        """Fold one event in."""
        event: Event = recorded.envelope.event
        if not isinstance(event, self.folded):
            return
        if isinstance(event, PromptSubmitted):
            self._prompts[event.group] = event
        elif isinstance(event, RolloutRequested):
            self._asked.setdefault(event.group, set()).add(event.sample)
        elif isinstance(event, RolloutCompleted):
            if event.group in self._prompts:  # else its group was rejected before it ended
                self._completed.setdefault(event.group, {})[event.sample] = recorded
                self._fresh[event.group] = None
        elif isinstance(event, RewardAssigned | RewardFailed):
            self._completed.get(event.group, {}).pop(event.sample, None)
            self._taken.discard(event.sample)
        elif isinstance(event, GroupAccepted | GroupRejected):
            self._forget(event.group)
        elif isinstance(event, EvalCompleted):
            for group in [g for g in self._prompts if is_of_evaluation(g, event.dataset, event.version)]:
                self._forget(group)

    def _forget(self, group: str) -> None:
        self._taken.difference_update(self._completed.pop(group, ()))
        for part in (self._prompts, self._asked, self._fresh):
            part.pop(group, None)

    def take(self) -> Iterator[tuple[str, dict[str, Recorded]]]:
        """(group, its completions by sample) that are due and were not taken before."""
        looked_at, self._fresh = self._fresh, {}
        for group in looked_at:
            completed = self._completed[group]
            fresh = {s: r for s, r in completed.items() if s not in self._taken}
            if not fresh or (self._whole_groups and not self._asked.get(group, set()) <= completed.keys()):
                continue
            self._taken |= fresh.keys()
            yield group, fresh

    def is_evaluation(self, group: str) -> bool:
        """Whether a group is an evaluation's."""
        return self._prompts[group].purpose is Purpose.EVAL

    def samples(self, group: str, completed: dict[str, Recorded]) -> list[Sample]:
        """What the grader is shown."""
        events = [recorded.envelope.event for recorded in completed.values()]
        prompt = self._prompts[group]
        return [completed_sample(event, prompt) for event in events if isinstance(event, RolloutCompleted)]
