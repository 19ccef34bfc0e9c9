"""Which prompt is drawn next, by the pass rates seen so far. Pure: the same draws and seed give the same choice.

A prompt that the policy always or never solves teaches nothing: with rewards 0 and 1 the expected size of a group's
advantages goes with p (1 - p), the variance of its reward. So prompts are drawn with that weight, which prefers pass
rates near one half (Foster et al., Learning to reason at the frontier of learnability, 2025, arXiv 2502.12272).
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from slime_events.loop.prompts.draw_stats import Drawn


def uniform(seed: int, what: str, number: int) -> float:
    """A number in [0, 1) that depends on these alone."""
    digest = hashlib.blake2b(f"{seed}:{what}:{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64


def weight(passed: float, answers: float) -> float:
    """p (1 - p) with p = (passed + 1) / (answers + 2): a prompt that was never passed keeps a small chance."""
    rate = (passed + 1.0) / (answers + 2.0)
    return rate * (1.0 - rate)


class Pool:
    """Prompts of one source that may be drawn now. rates: (passed, answers) by row; rest: versions between two draws of
    the same. Whoever is drawn leaves it.
    """

    def __init__(
        self, rates: Mapping[int, tuple[float, float]], known: Mapping[int, Drawn], *, version: int, rest: int
    ) -> None:
        self._known, self._every = known, rates.keys()
        self._rows = sorted(row for row in rates if row not in known or _may_be_drawn(known[row], version, rest))
        self._weights: npt.NDArray[np.float64] = np.array([weight(*rates[row]) for row in self._rows], dtype=np.float64)
        self._gone: dict[int, bool] = {}
        self._times: Counter[int] = Counter()

    def draw(self, at: float) -> int | None:
        """The row at `at` in [0, 1) of all weights laid end to end; None where nothing may be drawn now."""
        ends = np.cumsum(self._weights)
        if not len(ends) or ends[-1] <= 0:
            return None
        place = int(np.searchsorted(ends, at * ends[-1], side="right"))
        return self._rows[min(place, int(np.flatnonzero(self._weights)[-1]))]

    @property
    def rows(self) -> list[int]:
        """Those that may be drawn now, in order."""
        return [row for row, chance in zip(self._rows, self._weights, strict=True) if chance > 0]

    def longest_ago(self) -> int | None:
        """The row whose last draw is longest ago, open and resting ones among them; None where none can be used."""
        usable = [row for row in {*self._every, *self._gone} if not self._is_refused(row)]
        return min(usable, key=lambda row: (self._times[row], *_last(self._known.get(row)), row), default=None)

    def times(self, row: int) -> int:
        """How often it was drawn."""
        return self._times[row] + (self._known[row].times if row in self._known else 0)

    def remove(self, row: int, *, refused: bool) -> None:
        """It was drawn, or found to be unusable."""
        self._gone[row] = refused
        self._times[row] += 1
        place = bisect_left(self._rows, row)
        if place < len(self._rows) and self._rows[place] == row:
            self._weights[place] = 0.0

    def has(self, row: int) -> bool:
        """Whether it was drawn before, or now."""
        return row in self._known or row in self._gone

    @property
    def drawn(self) -> int:
        """How many were."""
        return len(self._known) + sum(1 for row in self._gone if row not in self._known)

    def _is_refused(self, row: int) -> bool:
        return self._gone.get(row, False) or (row in self._known and self._known[row].is_refused)


def _may_be_drawn(drawn: Drawn, version: int, rest: int) -> bool:
    return not (drawn.is_refused or drawn.is_open) and version - drawn.version >= rest


def _last(drawn: Drawn | None) -> tuple[int, int]:
    return (-1, 0) if drawn is None else (drawn.version, drawn.times)
