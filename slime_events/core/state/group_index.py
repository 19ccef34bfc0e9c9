"""`GroupIndex`: the groups of a state by whether they wait, so that few active groups are found among many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec import UNSET

from slime_events.core.state.group import GroupState


class GroupIndex:
    """An index that follows from the state and is not part of it. Code that changes the state's groups must update it.

    by_share: names of the training groups that wait for their first request, in order of arrival, by the source of
    their share (None: the run's own prompts).
    """

    def __init__(self, groups: Mapping[str, GroupState], waiting: Sequence[str]) -> None:
        names = set(waiting)
        self._begun = {name: group for name, group in groups.items() if name not in names}
        self.by_share: defaultdict[str | None, dict[str, None]] = defaultdict(dict)
        for name in waiting:
            self.waits(groups[name])

    @property
    def begun(self) -> list[GroupState]:
        """The groups that do not wait, in the order of their prompts."""
        return sorted(self._begun.values(), key=lambda group: group.position)

    def __len__(self) -> int:
        """Return the number of groups that do not wait."""
        return len(self._begun)

    def waits(self, group: GroupState) -> None:
        """Add a new group that waits."""
        self.by_share[None if group.share is UNSET else group.share][group.group] = None

    def begins(self, group: GroupState) -> None:
        """Add a group that does not wait, or stops waiting."""
        self.by_share[None if group.share is UNSET else group.share].pop(group.group, None)
        self._begun[group.group] = group

    def leaves(self, name: str) -> None:
        """Remove a group that does not wait and has left the state."""
        self._begun.pop(name, None)
