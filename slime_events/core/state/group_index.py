"""`GroupIndex`: the groups of a state by whether they wait, so that no look at the few others passes over the many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec import UNSET

from slime_events.core.state.group import GroupState


class GroupIndex:
    """It follows from the state and is no part of it. Whoever changes the state's groups keeps it, or drops it.

    by_share: names of the training groups that wait for their first request, by the source to whose share they count
    (None: the run's own prompts), in the order in which they came.
    """

    def __init__(self, groups: Mapping[str, GroupState], waiting: Sequence[str]) -> None:
        those = set(waiting)
        self._begun = {name: group for name, group in groups.items() if name not in those}
        self.by_share: defaultdict[str | None, dict[str, None]] = defaultdict(dict)
        for name in waiting:
            self.waits(groups[name])

    @property
    def begun(self) -> list[GroupState]:
        """The groups that do not wait, in the order in which their prompts came."""
        return sorted(self._begun.values(), key=lambda group: group.position)

    def __len__(self) -> int:
        """Groups that do not wait."""
        return len(self._begun)

    def waits(self, group: GroupState) -> None:
        """A group is new, and waits."""
        self.by_share[None if group.share is UNSET else group.share][group.group] = None

    def begins(self, group: GroupState) -> None:
        """A group waits no more, or never did."""
        self.by_share[None if group.share is UNSET else group.share].pop(group.group, None)
        self._begun[group.group] = group

    def leaves(self, name: str) -> None:
        """A group that did not wait has left the state."""
        self._begun.pop(name, None)
