"""`GroupIndex`: the groups of a state by what a decision asks for, so that it looks only at groups that changed.

The fold names every group that an event changes. The next reader of the index looks at those groups alone, so a
decision takes as long among 65,000 open groups as among ten.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple, TypeVar

from msgspec import UNSET

from schemas.doc import doc
from schemas.event import Purpose
from slime_events.core.state.group import GroupPhase, GroupState, SamplePhase

# Bound once: they are read for every sample of a changed group.
_GRADED, _UNGRADED, _FAILED = SamplePhase.GRADED, SamplePhase.UNGRADED, SamplePhase.FAILED
_SUSPENDED = SamplePhase.SUSPENDED
T = TypeVar("T")


class Age(NamedTuple):
    """Age of a group, which bounds the step that may train it."""

    oldest: Annotated[int, doc("oldest weight version in it")]
    bound: Annotated[int | None, doc("versions that it may be behind; None: the run's bound")]


class _Entry(NamedTuple):
    """A group that does not wait, as the index counts it."""

    phase: GroupPhase
    purpose: Purpose
    settled: bool
    failed: bool
    suspended: bool
    age: Age | None
    evaluation: tuple[str, int] | None


class GroupIndex:
    """An index that follows from the state and is not part of it. Code that changes the state's groups must update it.

    The groups of all but `by_share` do not wait. They are right after `refresh`, which `RunState.index` calls.
    """

    def __init__(self, groups: Mapping[str, GroupState], waiting: Sequence[str]) -> None:
        names = set(waiting)
        self._begun = {name: group for name, group in groups.items() if name not in names}
        self._entries: dict[str, _Entry] = {}
        self.by_share: defaultdict[str | None, dict[str, None]] = defaultdict(dict)
        """Training groups that wait for their first request, in order of arrival, by the source of their share (None:
        the run's own prompts)."""
        self.requested: dict[str, GroupState] = {}
        """Training groups without a verdict, in the order of their requests."""
        self.settled: dict[str, GroupState] = {}
        """Those of them whose samples all have a reward, or cannot get one."""
        self.recalled: dict[str, GroupState] = {}
        """Those of `requested` that reuse recorded rollouts, in the order of their requests."""
        self.failed: dict[str, GroupState] = {}
        """Groups without a verdict, of any purpose, with a failed sample, or one that cannot get a reward."""
        self.suspended: dict[Purpose, dict[str, GroupState]] = {purpose: {} for purpose in Purpose}
        """Groups without a verdict that have a suspended sample."""
        self.unsettled: Counter[tuple[str, int]] = Counter()
        """Data set and version of an evaluation to the number of its groups that are neither settled nor failed."""
        self.ages: dict[GroupPhase, Counter[Age]] = {GroupPhase.REQUESTED: Counter(), GroupPhase.ACCEPTED: Counter()}
        """Number of training groups by age, in these phases."""
        self.settled_ages: Counter[Age] = Counter()
        """Number of the settled groups by age."""
        self.shares: Counter[str | None] = Counter()
        """Number of training groups by the source of their share."""
        self.changed: dict[str, None] = {}
        """Names of the groups that events have changed since the last refresh."""
        for name in waiting:
            self.waits(groups[name])
        for group in sorted(self._begun.values(), key=lambda group: group.order):
            self._count_share(group, 1)
            self.changed[group.group] = None

    @property
    def begun(self) -> list[GroupState]:
        """The groups that do not wait, in the order of their prompts."""
        return sorted(self._begun.values(), key=lambda group: group.position)

    def __iter__(self) -> Iterator[GroupState]:
        """Iterate over the groups that do not wait, in no order."""
        return iter(self._begun.values())

    def __len__(self) -> int:
        """Return the number of groups that do not wait."""
        return len(self._begun)

    def waits(self, group: GroupState) -> None:
        """Add a new group that waits."""
        self.by_share[_share_of(group)][group.group] = None

    def begins(self, group: GroupState) -> None:
        """Add a group that does not wait, or stops waiting."""
        name = group.group
        self.by_share[_share_of(group)].pop(name, None)
        self._begun[name] = group
        self._count_share(group, 1)
        self.changed.pop(name, None)
        self.changed[name] = None  # at the end: `requested` has the order of the requests

    def leaves(self, name: str) -> None:
        """Remove a group that does not wait and has left the state."""
        group = self._begun.pop(name, None)
        if group is not None:
            self._count_share(group, -1)
            self.changed.pop(name, None)
            self._move(group, self._entries.pop(name, None), None)

    def refresh(self) -> GroupIndex:
        """Take in the groups that have changed."""
        for name in self.changed:
            group = self._begun.get(name)
            if group is None:
                continue
            before, now = self._entries.get(name), _entry_of(group)
            if before != now:
                self._entries[name] = now
                self._move(group, before, now)
        self.changed.clear()
        return self

    def _count_share(self, group: GroupState, by: int) -> None:
        if group.purpose is Purpose.TRAIN:
            _count(self.shares, _share_of(group), by)

    def _move(self, group: GroupState, before: _Entry | None, now: _Entry | None) -> None:
        """Update sets and counts of a group. before, now: its old and its new entry."""
        was, is_ = self._places(group, before), self._places(group, now)
        for place in was:
            if not any(place is other for other in is_):
                del place[group.group]
        for place in is_:
            place.setdefault(group.group, group)
        for entry, by in ((before, -1), (now, 1)):
            if entry is None:
                continue
            if entry.age is not None:
                _count(self.ages[entry.phase], entry.age, by)
                if entry.settled and entry.phase is GroupPhase.REQUESTED:
                    _count(self.settled_ages, entry.age, by)
            if entry.evaluation is not None:
                _count(self.unsettled, entry.evaluation, by)

    def _places(self, group: GroupState, entry: _Entry | None) -> list[dict[str, GroupState]]:
        places: list[dict[str, GroupState]] = []
        if entry is None or entry.phase is not GroupPhase.REQUESTED:
            return places
        if entry.purpose is Purpose.TRAIN:
            places.append(self.requested)
            if entry.settled:
                places.append(self.settled)
            if group.recalled is not UNSET:
                places.append(self.recalled)
        if entry.failed:
            places.append(self.failed)
        if entry.suspended:
            places.append(self.suspended[entry.purpose])
        return places


def _entry_of(group: GroupState) -> _Entry:
    phase, purpose = group.phase, group.purpose
    settled, failed, suspended = bool(group.samples), False, False
    for sample in group.samples.values():
        stage = sample.phase
        if stage is _GRADED:
            continue
        if stage is _UNGRADED:
            failed = True
            continue
        settled = False
        failed = failed or stage is _FAILED
        suspended = suspended or stage is _SUSPENDED
    age = evaluation = None
    if purpose is Purpose.TRAIN:
        if phase is GroupPhase.REQUESTED or phase is GroupPhase.ACCEPTED:
            age = Age(group.oldest, None if group.recalled is UNSET else group.recalled.bound)
    elif not (settled or failed):
        evaluation = group.dataset, group.version
    return _Entry(phase, purpose, settled, failed, suspended, age, evaluation)


def _share_of(group: GroupState) -> str | None:
    return None if group.share is UNSET else group.share


def _count(counts: Counter[T], key: T, by: int) -> None:
    """Count, and forget what has none: the keys of a long run would be many."""
    counts[key] += by
    if not counts[key]:
        del counts[key]
