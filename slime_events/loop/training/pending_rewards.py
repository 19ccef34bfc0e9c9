"""`PendingRewards`: completed samples without a reward. It is the grader's whole state, folded from the log."""

from collections.abc import Iterator, Mapping

from schemas.evals import EvalCompleted
from schemas.event import Event, Purpose
from schemas.groups import GroupAccepted, GroupRejected
from schemas.ids import is_of_evaluation, order_in_group
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import RolloutCompleted, RolloutRequested
from slime_events.core.tokens.trajectory import Fetch, Trajectory
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
"""Event types that are always needed. Grading whole groups needs the requests too."""


class PendingRewards:
    """Samples to grade, by group.

    whole_groups: a group is due only when all its requested samples are completed. folded: the event types that are
    needed; all others are ignored.
    """

    def __init__(self, *, whole_groups: bool) -> None:
        self._whole_groups = whole_groups
        self.folded: tuple[type[Event], ...] = (*FOLDED, RolloutRequested) if whole_groups else FOLDED
        self._prompts: dict[str, PromptSubmitted] = {}
        self._requested: dict[str, set[str]] = {}
        self._completed: dict[str, dict[str, Recorded]] = {}
        self._taken: set[str] = set()
        self._fresh: dict[str, None] = {}

    def apply(self, recorded: Recorded) -> None:
        """Fold an event in."""
        event: Event = recorded.envelope.event
        if not isinstance(event, self.folded):
            return
        if isinstance(event, PromptSubmitted):
            self._prompts[event.group] = event
        elif isinstance(event, RolloutRequested) and event.group in self._prompts:
            self._requested.setdefault(event.group, set()).add(event.sample)
        elif isinstance(event, RolloutCompleted):
            if event.group in self._prompts:  # else its group was already rejected
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
        for part in (self._prompts, self._requested, self._fresh):
            part.pop(group, None)

    def take(self) -> Iterator[tuple[str, dict[str, Recorded]]]:
        """Yield each due group once, with its new completions by sample, in the order of indices."""
        groups, self._fresh = self._fresh, {}
        for group in groups:
            completed = self._completed[group]
            fresh = {s: r for s, r in completed.items() if s not in self._taken}
            if not fresh or (self._whole_groups and not self._requested.get(group, set()) <= completed.keys()):
                continue
            self._taken |= fresh.keys()
            yield group, dict(sorted(fresh.items(), key=lambda item: order_in_group(item[0])))

    def is_evaluation(self, group: str) -> bool:
        """Return whether a group belongs to an evaluation."""
        return self._prompts[group].purpose is Purpose.EVAL

    def samples(
        self,
        group: str,
        completed: dict[str, Recorded],
        fetch: Fetch | None = None,
        chunked: Mapping[str, Trajectory] | None = None,
    ) -> list[Sample]:
        """Return the samples as the grader sees them. fetch, chunked: for their tokens; see `completed_sample`."""
        events = [recorded.envelope.event for recorded in completed.values()]
        prompt, chunked = self._prompts[group], chunked or {}
        return [
            completed_sample(event, prompt, fetch, chunked.get(event.sample))
            for event in events
            if isinstance(event, RolloutCompleted)
        ]
