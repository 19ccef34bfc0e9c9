"""`Leases`: who works on what of one queue, from the roll calls of its takers. Pure: it sends and reads nothing.

    each taker, CALLS times in a lease -> a call that names all that it holds (storage/jetstream/roll_call.py)
    a taker that is not heard, or lets go -> what it held is loose; the keeper looks up what came after its last call
    loose, and held by nobody two calls later -> orphans: the keeper gives them back to the queue
    the server counts more in work than takers hold, for some leases -> the keeper looks up all

The keeper is the least of the takers that know. All listen, so that the next one goes on where a keeper is lost.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import msgspec

CALLS = 6
"""Of each taker in a lease. After half of them without a sign a taker is silent; two later its events are orphans."""
_SILENT, _WAIT = 3, 2
_COUNTS = 4
"""Of the server's count in a row, one in a lease, by which something was lost that no call tells of."""


class Call(msgspec.Struct, frozen=True, array_like=True):
    """What a taker says of itself. lease_s: its lease, 0 where it leaves. held: positions. loose: those that it has let
    go of since its last call without being done. broke: what was on the way to it is lost. knows: see `Leases.knows`.
    """

    taker: str
    lease_s: float
    held: tuple[int, ...]
    loose: tuple[int, ...] = ()
    broke: bool = False
    knows: bool = False


@dataclass(slots=True)
class _Taker:
    """at: of its last call, on the clock of `Leases`. seen: a position below all that it may have been given since."""

    at: float
    lease_s: float
    held: frozenset[int]
    seen: int
    knows: bool


class Leases:
    """me: the taker that folds the calls. lease_s: its own.

    Time passes with its own calls, as they come back to it: a machine or a server that is paused, and a connection that
    is lost, make nobody else silent.
    """

    def __init__(self, me: str, lease_s: float) -> None:
        self.me, self._lease_s = me, lease_s
        self.every_s = lease_s / CALLS
        self._takers: dict[str, _Taker] = {}
        self._clock, self._heard_at, self._ticks = 0.0, 0.0, 0
        self._newest = [0] * _SILENT
        self._loose: set[int] = set()
        self._from: int | None = 1
        self._dirty, self._since = True, 0.0
        self._candidates: dict[int, int] = {}
        self._counted_at = self._surplus = 0
        self.knows = False
        """Whether it has heard of all that is held: from one that knew, or by a look at all of the queue."""

    def hear(self, call: Call, now: float) -> bool:
        """Fold one call in; whether it is an own one, after which the next step is due. now: a clock never set, s."""
        mine = call.taker == self.me
        if mine:
            passed = now - self._heard_at if self._ticks else 0.0
            self._clock += min(passed, 2 * self.every_s)
            self._heard_at, self._ticks = now, self._ticks + 1
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
            self._takers[call.taker] = _Taker(self._clock, call.lease_s, held, self._newest[0], call.knows)
        if mine:
            self._tick()
        return mine

    def _tick(self) -> None:
        for name, taker in list(self._takers.items()):
            if self._clock - taker.at > taker.lease_s * _SILENT / CALLS:
                del self._takers[name]
                self._loose |= taker.held
                self._look_from(taker.seen + 1)
        if not self.knows and self._is_grown and any(one.knows for one in self._takers.values()):
            self.knows, self._from = True, None
        if self._dirty and not self.is_keeper and self._clock - self._since > 2 * self._lease_s:
            self._from, self._dirty = None, False  # another one has seen to it

    def _look_from(self, position: int | None) -> None:
        if position is not None:
            self._from = position if self._from is None else min(self._from, position)
        self._dirty, self._since = True, self._clock

    @property
    def _is_grown(self) -> bool:
        """Whether it has listened for so long that it has heard all that live."""
        return self._ticks > _SILENT

    @property
    def is_keeper(self) -> bool:
        """Whether it is this taker that gives orphans back."""
        those = [name for name, taker in self._takers.items() if taker.knows] or list(self._takers)
        return self._is_grown and self.me == min(those, default="")

    def begin_look(self) -> int | None:
        """From which position on the keeper has to look up what was delivered; None: it has nothing to look up. After
        it comes `looked`, or `look_again`.
        """
        if not self._dirty or not self.is_keeper:
            return None
        start = self._newest[-1] + 1 if self._from is None else self._from
        self._from, self._dirty = None, False
        return start

    def look_again(self, position: int | None = None) -> None:
        """A look from a position failed, or the orphans could not be given back."""
        self._look_from(position)

    def begin_count(self) -> bool:
        """Whether the keeper has to ask the server how much is in work: once in a lease. After it comes `count`."""
        if not self.is_keeper:
            self._surplus = 0
        if not self.is_keeper or self._dirty or self._ticks - self._counted_at < CALLS:
            return False
        self._counted_at = self._ticks
        return True

    def count(self, pending: int) -> None:
        """pending: events that the server has delivered and has no end of. Where takers hold fewer for long, some were
        lost on their way though no taker's connection broke, or acks were: between nodes of a cluster. All are looked
        up then. For a moment they may differ, by what has just been delivered.
        """
        self._surplus = self._surplus + 1 if pending > len(self.held) else 0
        if self._surplus == _COUNTS:
            self._surplus = 0
            self._look_from(1)

    def looked(self, floor: int, delivered: Iterable[int]) -> None:
        """floor: all up to it is done. delivered: positions of `begin_look` that were handed to somebody."""
        self.knows = True
        self._loose = {position for position in self._loose if position > floor}
        for position in (self._loose | set(delivered)) - self.held:
            self._candidates.setdefault(position, self._ticks + _WAIT)

    def orphans(self) -> Collection[int]:
        """Positions to give back to the queue, each once; those that live takers have taken meanwhile are not among
        them. They stay loose until a taker holds them.
        """
        due = {position for position, tick in self._candidates.items() if tick <= self._ticks}
        if not due:
            return ()
        for position in due:
            del self._candidates[position]
        orphans = due - self.held
        self._loose |= orphans
        return sorted(orphans)

    @property
    def held(self) -> set[int]:
        """What takers that are heard hold."""
        return set[int]().union(*(taker.held for taker in self._takers.values()))

    def break_off(self) -> None:
        """The connection was lost: others may have lost theirs too, and are given their time anew."""
        for taker in self._takers.values():
            taker.at = self._clock
