"""`Load`: how many of some intervals of time cover each moment, integrated."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Interval = tuple[float, float]
"""Begin and end [s]."""
Seconds = npt.NDArray[np.float64]


class Load:
    """The number of intervals that cover a moment, as a step function of time. Empty intervals do not count.

    intervals: pairs, or an array of them [n, 2].
    """

    def __init__(self, intervals: Iterable[Interval] | Seconds) -> None:
        pairs = intervals if isinstance(intervals, np.ndarray) else list(intervals)
        bounds = np.asarray(pairs, np.float64).reshape(-1, 2)
        bounds = bounds[bounds[:, 1] > bounds[:, 0]]
        times = np.concatenate([bounds[:, 0], bounds[:, 1]])
        changes = np.concatenate([np.ones(len(bounds)), -np.ones(len(bounds))])
        order = np.argsort(times, kind="stable")
        self._times = times[order]
        self._counts = np.cumsum(changes[order])
        lengths = np.diff(self._times)
        self._covered = np.concatenate([[0.0], np.cumsum(self._counts[:-1] * lengths)])
        self._is_any = (self._counts > 0).astype(np.float64)
        self._any = np.concatenate([[0.0], np.cumsum(self._is_any[:-1] * lengths)])

    @property
    def most(self) -> int:
        """The largest number of intervals that cover one moment."""
        if not len(self._times):
            return 0
        last_of_moment = np.append(np.diff(self._times) > 0, True)
        return int(self._counts[last_of_moment].max())

    def covered(self, begins: npt.ArrayLike, ends: npt.ArrayLike) -> Seconds:
        """Return, per pair, the sum over all intervals of the time that they cover between begin and end [s]."""
        return self._until(ends, self._covered, self._counts) - self._until(begins, self._covered, self._counts)

    def busy(self, begins: npt.ArrayLike, ends: npt.ArrayLike) -> Seconds:
        """Return, per pair, the time between begin and end that at least one interval covers [s]."""
        return self._until(ends, self._any, self._is_any) - self._until(begins, self._any, self._is_any)

    def _until(self, moments: npt.ArrayLike, integral: Seconds, counts: Seconds) -> Seconds:
        at = np.asarray(moments, np.float64)
        if not len(self._times):
            return np.zeros(at.shape)
        place = np.clip(np.searchsorted(self._times, at, side="right") - 1, 0, len(self._times) - 1)
        return np.asarray(integral[place] + counts[place] * np.maximum(0.0, at - self._times[place]))
