"""`Listeners`: which takers of a queue listen to the calls of all, as one of its takers knows it. Pure: no I/O.

    a taker that hears fewer than LISTENERS listeners, and is named by one -> it begins to listen
    no listener is heard -> the named takers begin to listen, or any one after a random time
    more than twice as many -> those with the largest names stop

So a call is read by a few takers, however many there are. All takers hear the calls of the listeners.
"""

from collections.abc import Iterable
from heapq import nsmallest
from typing import Annotated, NamedTuple

from schemas.doc import doc
from storage.jetstream.call import Call
from storage.jetstream.own_time import OwnTime

LISTENERS = 4
"""Listeners of a queue that has enough takers, at least; at most twice as many."""
_START = 2
"""Own calls after which a taker has heard the listeners that there are."""


class _Heard(NamedTuple):
    """The last call of another listener."""

    at: Annotated[float, doc("own time [s]")]
    lease_s: float


class Listeners:
    """Fold of the listeners' calls at one taker. me: its name. lease_s: its lease. listens: it listens itself."""

    def __init__(self, me: str, lease_s: float) -> None:
        self._me, self._time = me, OwnTime(lease_s)
        self._heard: dict[str, _Heard] = {}
        self._named: tuple[str, ...] = ()
        self.listens = False

    def hear(self, call: Call, now: float) -> bool:
        """Fold one call. Return whether it is the taker's own. now: monotonic s."""
        if call.taker == self._me:
            self._time.tick(now)
            silent = [name for name, heard in self._heard.items() if self._time.is_silent(heard.at, heard.lease_s)]
            for name in silent:
                del self._heard[name]
            return True
        if call.listens and call.lease_s:
            self._heard[call.taker] = _Heard(self._time.seconds, call.lease_s)
            self._named = call.next or self._named
        else:
            self._heard.pop(call.taker, None)
        return False

    @property
    def is_missing(self) -> bool:
        """Whether this taker should begin to listen."""
        if self.listens or self._time.ticks < _START or len(self._heard) >= LISTENERS:
            return False
        return not self._heard or self._me in self._named

    def delay_s(self, chance: float) -> float:
        """Return after which seconds a missing taker begins, if it is missing then. chance: random, from 0 to 1.

        Without a listener many takers are missing at once, and the first that begins is heard by the others.
        """
        return 0.0 if self._me in self._named else chance * self._time.every_s

    @property
    def is_surplus(self) -> bool:
        """Whether this taker should stop listening."""
        before = sum(name < self._me for name in self._heard)
        return self.listens and len(self._heard) >= 2 * LISTENERS and before >= LISTENERS

    def next_of(self, takers: Iterable[str]) -> tuple[str, ...]:
        """Return which of these takers begin when listeners are missing."""
        return tuple(nsmallest(LISTENERS, (name for name in takers if name != self._me and name not in self._heard)))

    def break_off(self) -> None:
        """Restart the time of all listeners after a lost connection: others may have lost theirs too."""
        self._heard = {name: heard._replace(at=self._time.seconds) for name, heard in self._heard.items()}
