"""`Cycles`: which cycle the conductor may be in the midst of appending, given its decisions so far.

A conductor reads the log to some position, decides a whole cycle there, and appends it in order. It decides again only
when it has read all of that back. The log does not say at which positions it decided. So every cycle that it may have
decided is kept as long as each next decision is the one that comes next in that cycle.
"""

from dataclasses import dataclass

from schemas.event import Event
from slime_events.analysis.replay.equality import about, is_same


@dataclass(slots=True)
class Cycle:
    """at: position that it is decided at. appended: how many of its events are in the log. not_by: the conductor that
    cannot have begun it, since it was in the midst of another cycle.
    """

    events: list[Event]
    at: int
    not_by: str | None = None
    appended: int = 0

    @property
    def next(self) -> Event | None:
        """The event that it appends next; None at its end."""
        return self.events[self.appended] if self.appended < len(self.events) else None

    def takes(self, event: Event, producer: str) -> bool:
        """Whether `event` comes next; if so it counts as appended."""
        is_others = self.appended == 0 and producer == self.not_by
        if is_others or self.next is None or not is_same(event, self.next):
            return False
        self.appended += 1
        return True


class Cycles:
    """open: a new cycle may begin, since a whole one is appended (or none was begun)."""

    def __init__(self) -> None:
        self._possible: list[Cycle] = []
        self.open = True

    def add(self, cycle: Cycle) -> None:
        """One more that may be under way, unless it is empty or equal to the last one added."""
        last = self._possible[-1] if self._possible else None
        if cycle.events and (last is None or last.appended or last.events != cycle.events):
            self._possible.append(cycle)

    def takes(self, event: Event, producer: str) -> bool:
        """Whether one of the cycles has this decision next. Where none has, nothing is changed."""
        taken = [cycle for cycle in self._possible if cycle.takes(event, producer)]
        if not taken:
            return False
        self._possible = [cycle for cycle in taken if cycle.next is not None]
        self.open = len(self._possible) < len(taken)
        return True

    def nearest(self, event: Event) -> Cycle | None:
        """The cycle that came closest: by what `event` is about, then by how much of it is appended, then the last."""
        key = about(event)
        return max(
            self._possible,
            key=lambda cycle: (about(cycle.events[cycle.appended]) == key, cycle.appended, cycle.at),
            default=None,
        )

    def begin_anew(self, instead_of: Event | None = None) -> None:
        """A new cycle may begin. Those under way are given up, but for cycles that had another decision about the same
        thing: they go on after it.
        """
        key = None if instead_of is None else about(instead_of)
        self._possible = [cycle for cycle in self._possible if about(cycle.events[cycle.appended]) == key]
        for cycle in self._possible:
            cycle.appended += 1
        self._possible = [cycle for cycle in self._possible if cycle.next is not None]
        self.open = True
