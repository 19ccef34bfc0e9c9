"""`Lane`: the intervals of one worker, or of one kind of wait, so that any window of time is read without a scan."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt

from schemas.doc import doc
from slime_events.analysis.what_if.intervals import Load, Seconds

_WAITS = {
    "queue": "wait for an engine",
    "reward": "wait for a grader",
    "verdict": "wait for the filter",
    "batch": "wait for a batch",
}
Indexes = npt.NDArray[np.int64]
FARTHEST = 200_000
"""Most intervals before a window from which its tracks are counted."""


class LaneName(NamedTuple):
    """Name of a lane."""

    role: Annotated[str, doc("role in the table `intervals`")]
    name: Annotated[str, doc("worker, or the kind of wait")]

    @property
    def title(self) -> str:
        """Name for people. An engine may grade what it has generated."""
        if self.role == "waiting":
            return _WAITS.get(self.name, f"waits for {self.name}")
        return f"{self.name}: grading" if self.role == "grader" else self.name


class Gap(NamedTuple):
    """A time in which a lane has no interval."""

    start: Annotated[float, doc("its begin [s]")]
    end: Annotated[float, doc("its end [s]")]
    next: Annotated[int, doc("index in the lane of the interval that ends it")]


@dataclass(frozen=True, kw_only=True)
class Lane:
    """Intervals in the order of their starts. Times are seconds since the timeline's origin."""

    name: LaneName
    rows: Annotated[Indexes, doc("row of each interval in the table [n]")]
    starts: Annotated[Seconds, doc("ascending [n]")]
    ends: Annotated[Seconds, doc("[n]")]
    works: Annotated[npt.NDArray[np.uint8], doc("kind of work: index in `Lanes.works` [n]")]

    def tracks(self, chosen: Indexes) -> npt.NDArray[np.uint16]:
        """Return the lowest free track of some intervals at their start [n]: intervals on one track do not overlap.

        It is counted from the last moment before them at which all tracks were free, so it is the same in each window.
        After FARTHEST intervals without such a moment, it is counted from there. chosen: ascending indexes.
        """
        if not len(chosen):
            return np.empty(0, np.uint16)
        begin = int(self._all_free[np.searchsorted(self._all_free, chosen[0], side="right") - 1])
        begin, end = max(begin, int(chosen[0]) - FARTHEST), int(chosen[-1]) + 1
        return _tracks(self.starts[begin:end], self.ends[begin:end])[chosen - begin]

    @cached_property
    def _all_free(self) -> Indexes:
        """Indexes of the intervals at whose start all tracks are free, ascending."""
        return np.flatnonzero(np.append(True, self._last_ends[:-1] <= self.starts[1:])[: len(self.starts)])

    @property
    def depth(self) -> int:
        """Most intervals at once, at least 1."""
        return max(1, self.load.most)

    @cached_property
    def _last_ends(self) -> Seconds:
        return np.maximum.accumulate(self.ends)

    @cached_property
    def _sorted_ends(self) -> Seconds:
        return np.sort(self.ends)

    @cached_property
    def load(self) -> Load:
        return Load(np.stack([self.starts, self.ends], axis=1))

    @cached_property
    def loads(self) -> dict[int, Load]:
        """Load by kind of work."""
        every = np.stack([self.starts, self.ends], axis=1)
        return {int(work): Load(every[self.works == work]) for work in np.unique(self.works)}

    def count(self, begin: float, end: float) -> int:
        """Return the number of intervals that a window touches [s]."""
        first = int(np.searchsorted(self._sorted_ends, begin, side="left"))
        return int(np.searchsorted(self.starts, end, side="right")) - first

    def inside(self, begin: float, end: float) -> Indexes:
        """Return the indexes of the intervals that a window touches, ascending [n]."""
        first = int(np.searchsorted(self._last_ends, begin, side="left"))
        last = int(np.searchsorted(self.starts, end, side="right"))
        return np.flatnonzero(self.ends[first:last] >= begin) + first

    def gaps(self, begin: float, end: float, shortest: float, most: int) -> list[Gap]:
        """Return the longest gaps that a window touches, in order. shortest: least length of one [s]."""
        last_ends, starts = self._last_ends[:-1], self.starts[1:]
        first = int(np.searchsorted(starts, begin, side="left"))
        last = int(np.searchsorted(last_ends, end, side="right"))
        lengths = starts[first:last] - last_ends[first:last]
        chosen = np.flatnonzero(lengths >= max(shortest, 1e-6))
        if len(chosen) > most:
            chosen = chosen[np.argpartition(-lengths[chosen], most)[:most]]
        chosen = np.sort(chosen) + first
        return [Gap(float(last_ends[at]), float(starts[at]), int(at) + 1) for at in chosen]


def _tracks(starts: Seconds, ends: Seconds) -> npt.NDArray[np.uint16]:
    """Return the lowest free track of each interval, if all are free at first [n]."""
    running: list[tuple[float, int]] = []
    free: list[int] = []
    tracks, most = np.empty(len(starts), np.uint16), 0
    for at, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        while running and running[0][0] <= start:
            heapq.heappush(free, heapq.heappop(running)[1])
        if free:
            track = heapq.heappop(free)
        else:
            track, most = most, min(most + 1, 2**16 - 1)
        tracks[at] = track
        heapq.heappush(running, (end, track))
    return tracks
