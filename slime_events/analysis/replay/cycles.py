"""`Cycles`: which cycle the conductor may be appending, given its decisions so far.

A conductor reads the log to some position, decides a whole cycle there, and appends it in order. It decides again only
after it has read all of that back. The log does not record the positions of decisions. So every possible cycle is kept
as long as each further decision is the next one in that cycle.
"""

from dataclasses import dataclass
from typing import Annotated

from schemas.doc import doc
from schemas.event import Event
from slime_events.analysis.replay.equality import about, is_same


@dataclass(slots=True)
class Cycle:
    """A cycle that a conductor may have decided."""

    events: Annotated[list[Event], doc("its events, in order")]
    at: Annotated[int, doc("position at which it is decided")]
    not_by: Annotated[str | None, doc("conductor that cannot have begun it: it was appending another cycle")] = None
    appended: Annotated[int, doc("number of its events in the log")] = 0

    @property
    def next(self) -> Event | None:
        """The event that it appends next; None at its end."""
        return self.events[self.appended] if self.appended < len(self.events) else None

    def takes(self, event: Event, producer: str) -> bool:
        """Return whether `event` comes next, and count it as appended if so."""
        is_others = self.appended == 0 and producer == self.not_by
        if is_others or self.next is None or not is_same(event, self.next):
            return False
        self.appended += 1
        return True


class Cycles:
    """Cycles that may be under way. open: whether a new cycle may begin, because a whole one is appended or none was
    begun.
    """

    def __init__(self) -> None:
        self._possible: list[Cycle] = []
        self.open = True

    def add(self, cycle: Cycle) -> None:
        """Add a cycle that may be under way, unless it is empty or equal to the last one."""
        last = self._possible[-1] if self._possible else None
        if cycle.events and (last is None or last.appended or last.events != cycle.events):
            self._possible.append(cycle)

    def takes(self, event: Event, producer: str) -> bool:
        """Return whether one of the cycles has this decision next. If none has, nothing changes."""
        taken = [cycle for cycle in self._possible if cycle.takes(event, producer)]
        if not taken:
            return False
        self._possible = [cycle for cycle in taken if cycle.next is not None]
        self.open = len(self._possible) < len(taken)
        return True

    def nearest(self, event: Event) -> Cycle | None:
        """Return the closest cycle: by the subject of `event`, then by its appended events, then the last one."""
        key = about(event)
        return max(
            self._possible,
            key=lambda cycle: (about(cycle.events[cycle.appended]) == key, cycle.appended, cycle.at),
            default=None,
        )

    def begin_anew(self, instead_of: Event | None = None) -> None:
        """Let a new cycle begin. Cycles under way are dropped, except those with another decision about the same
        subject, which continue after it.
        """
        key = None if instead_of is None else about(instead_of)
        self._possible = [cycle for cycle in self._possible if about(cycle.events[cycle.appended]) == key]
        for cycle in self._possible:
            cycle.appended += 1
        self._possible = [cycle for cycle in self._possible if cycle.next is not None]
        self.open = True
