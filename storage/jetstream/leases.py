"""`Leases`: which taker of one queue holds which events, folded from the takers' roll calls. Pure: no I/O.

    each taker sends, CALLS times per lease, a call with all that it holds (storage/jetstream/roll_call.py)
    a taker is silent, or releases events -> they are loose; the keeper looks up what came after the taker's last call
    loose and held by no taker two calls later -> orphans: the keeper returns them to the queue
    the server counts more events in work than the takers hold, for several leases -> the keeper looks up all

The keeper is the listener with the smallest name among those that know the whole queue. A few takers listen to all
calls (storage/jetstream/listeners.py), so another one continues if the keeper is lost.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from storage.jetstream.call import Call
from storage.jetstream.own_time import CALLS, OwnTime

_SILENT, _WAIT = CALLS // 2, 2
"""A taker is silent after that many missing calls; that many later it has orphans."""
_COUNTS = 4
"""Consecutive surplus counts of the server, one per lease, that show a loss which no call reports."""


@dataclass(slots=True)
class _Taker:
    """The last call of a taker. `seen` is a position below all that may have been delivered to it since."""

    at: float
    lease_s: float
    held: frozenset[int]
    seen: int
    listens: bool
    knows: bool


class Leases:
    """Fold of the roll calls at a taker that listens. me: its name. lease_s: its lease."""

    def __init__(self, me: str, lease_s: float) -> None:
        self.me, self._lease_s, self._time = me, lease_s, OwnTime(lease_s)
        self._takers: dict[str, _Taker] = {}
        self._newest = [0] * _SILENT
        self._loose: set[int] = set()
        self._from: int | None = 1
        self._dirty, self._since = True, 0.0
        self._candidates: dict[int, int] = {}
        self._counted_at = self._surplus = 0
        self.knows = False
        """Whether the taker has learned of all held events: from a taker that knew, or by a look-up of the queue."""

    def hear(self, call: Call, now: float) -> bool:
        """Fold one call. Return whether it is the taker's own, after which its next step is due. now: monotonic s."""
        mine = call.taker == self.me
        if mine:
            self._time.tick(now)
            self._newest = [*self._newest[1:], self._newest[-1]]
        before = self._takers.pop(call.taker, None)
        if call.broke and before is not None:
            self._look_from(before.seen + 1)
        held = frozenset(call.held)
        if call.loose:
            self._loose.update(call.loose)
            self._look_from(None)
        self._loose -= held
        self._newest[-1] = max(self._newest[-1], max(held, default=0))
        if call.lease_s:
            self._takers[call.taker] = _Taker(
                self._time.seconds, call.lease_s, held, self._newest[0], call.listens, call.knows
            )
        if mine:
            self._tick()
        return mine

    def _tick(self) -> None:
        for name, taker in list(self._takers.items()):
            if self._time.is_silent(taker.at, taker.lease_s):
                del self._takers[name]
                self._loose |= taker.held
                self._look_from(taker.seen + 1)
        if not self.knows and self._is_grown and any(taker.knows for taker in self._takers.values()):
            self.knows, self._from = True, None
        if self._dirty and not self.is_keeper and self._time.seconds - self._since > 2 * self._lease_s:
            self._from, self._dirty = None, False  # another keeper has looked

    def _look_from(self, position: int | None) -> None:
        if position is not None:
            self._from = position if self._from is None else min(self._from, position)
        self._dirty, self._since = True, self._time.seconds

    @property
    def _is_grown(self) -> bool:
        """Whether it has listened long enough to hear every live taker."""
        return self._time.ticks > _SILENT

    @property
    def is_keeper(self) -> bool:
        """Whether this taker returns orphans to the queue."""
        listeners = {name: taker for name, taker in self._takers.items() if taker.listens}
        candidates = [name for name, taker in listeners.items() if taker.knows] or list(listeners)
        return self._is_grown and self.me == min(candidates, default="")

    def begin_look(self) -> int | None:
        """Return the position from which the keeper has to look up deliveries, or None if it has not to.

        The caller then calls `looked` or `look_again`.
        """
        if not self._dirty or not self.is_keeper:
            return None
        start = self._newest[-1] + 1 if self._from is None else self._from
        self._from, self._dirty = None, False
        return start

    def look_again(self, position: int | None = None) -> None:
        """Look again: a look-up from `position` failed, or the orphans could not be returned."""
        self._look_from(position)

    def begin_count(self) -> bool:
        """Return whether the keeper has to request the number of events in work (once per lease) and call `count`."""
        if not self.is_keeper:
            self._surplus = 0
        if not self.is_keeper or self._dirty or self._time.ticks - self._counted_at < CALLS:
            return False
        self._counted_at = self._time.ticks
        return True

    def count(self, pending: int) -> None:
        """Compare the server's count of unfinished deliveries with what the takers hold.

        If takers hold fewer for several leases, deliveries or acks were lost without a broken connection (between nodes
        of a cluster), and all are looked up. A short difference is normal: events may just have been delivered.
        """
        self._surplus = self._surplus + 1 if pending > len(self.held) else 0
        if self._surplus == _COUNTS:
            self._surplus = 0
            self._look_from(1)

    def looked(self, floor: int, delivered: Iterable[int]) -> None:
        """Take in a look-up. floor: all up to it is done. delivered: positions from `begin_look` on."""
        self.knows = True
        self._loose = {position for position in self._loose if position > floor}
        for position in (self._loose | set(delivered)) - self.held:
            self._candidates.setdefault(position, self._time.ticks + _WAIT)

    def orphans(self) -> Collection[int]:
        """Return the positions to return to the queue, each once, without those that a taker holds meanwhile.

        They stay loose until a taker holds them.
        """
        due = {position for position, tick in self._candidates.items() if tick <= self._time.ticks}
        if not due:
            return ()
        for position in due:
            del self._candidates[position]
        orphans = due - self.held
        self._loose |= orphans
        return sorted(orphans)

    @property
    def takers(self) -> Collection[str]:
        """Names of the live takers."""
        return self._takers.keys()

    @property
    def held(self) -> set[int]:
        """Positions that live takers hold."""
        return set[int]().union(*(taker.held for taker in self._takers.values()))

    def break_off(self) -> None:
        """Restart the time of all takers after a lost connection: others may have lost theirs too."""
        for taker in self._takers.values():
            taker.at = self._time.seconds
