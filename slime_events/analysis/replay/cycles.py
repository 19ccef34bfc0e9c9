"""`Turns`: what the conductor may be in the midst of saying, given what it has said so far.

A conductor looks at the log at some position, decides a whole turn there, and says it in order; it looks again only
when it has read all of it back. At which positions it looked is not in the log. So every turn that it may have decided
is kept as long as each next decision is the one that this turn has next.
"""

from __future__ import annotations

from dataclasses import dataclass

from schemas.event import Event
from slime_events.analysis.replay.equality import about, is_same


@dataclass(slots=True)
class Turn:
    """at: position that it is decided at. said: how many of its events have been. other_than: the conductor that
    cannot have begun it, as it was in the midst of another turn.
    """

    events: list[Event]
    at: int
    other_than: str | None = None
    said: int = 0

    @property
    def next(self) -> Event | None:
        """What it says next; None where all is said."""
        return self.events[self.said] if self.said < len(self.events) else None

    def takes(self, event: Event, producer: str) -> bool:
        """Whether `event` is what comes next; if so it is said now."""
        if self.said == 0 and producer == self.other_than:
            return False
        if self.next is None or not is_same(event, self.next):
            return False
        self.said += 1
        return True


class Turns:
    """open: a new turn may begin, since a whole one has been said (or none was begun)."""

    def __init__(self) -> None:
        self._possible: list[Turn] = []
        self.open = True

    def add(self, turn: Turn) -> None:
        """One more that may be under way. An empty one says nothing, and one that is there already needs no copy."""
        last = self._possible[-1] if self._possible else None
        if turn.events and (last is None or last.said or last.events != turn.events):
            self._possible.append(turn)

    def takes(self, event: Event, producer: str) -> bool:
        """The next decision: whether one of the turns says it. If none does nothing is changed."""
        found = [turn for turn in self._possible if turn.takes(event, producer)]
        if not found:
            return False
        self._possible = [turn for turn in found if turn.next is not None]
        self.open = len(self._possible) < len(found)
        return True

    def nearest(self, event: Event) -> Turn | None:
        """The turn that came closest: by what `event` is about, then by how much of it was said, then the last."""
        key = about(event)
        return max(
            self._possible, key=lambda turn: (about(turn.events[turn.said]) == key, turn.said, turn.at), default=None
        )

    def begin_anew(self, instead_of: Event | None = None) -> None:
        """A new turn may begin. What was under way is given up, but for turns that had something else to say in the
        place of a decision: they go on after it.
        """
        key = None if instead_of is None else about(instead_of)
        self._possible = [turn for turn in self._possible if about(turn.events[turn.said]) == key]
        for turn in self._possible:
            turn.said += 1
        self._possible = [turn for turn in self._possible if turn.next is not None]
        self.open = True
