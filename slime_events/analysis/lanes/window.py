"""`window_of`: the part of a timeline in a window of time: bars, or means per pixel for many of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeVar

import numpy as np
import numpy.typing as npt

from schemas.doc import doc
from slime_events.analysis.lanes.idle import Idle, idle_of
from slime_events.analysis.lanes.lane import Lane
from slime_events.analysis.lanes.lanes import Lanes
from slime_events.analysis.what_if.intervals import Seconds

Number = TypeVar("Number", bound=np.generic)
MOST_BARS = 6000
"""Most bars of a window."""
LANE_BARS = 1500
"""Most bars of one lane; a lane with more intervals gets cells."""
MOST_IDLE = 60
"""Most idle times of a lane, the longest ones."""
LEAST = 1e-9
"""Least mean of a cell: below it is what rounding leaves."""
IDLE_CELLS = 3
"""Shortest idle time, in cells."""


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Single intervals."""

    lane: Annotated[npt.NDArray[np.uint16], doc("index of the lane [n]")]
    track: Annotated[npt.NDArray[np.uint16], doc("track in the lane [n]")]
    work: Annotated[npt.NDArray[np.uint8], doc("index of the kind of work [n]")]
    start: Annotated[Seconds, doc("[n]")]
    end: Annotated[Seconds, doc("[n]")]
    version: Annotated[npt.NDArray[np.int32], doc("weight version, -1 for none [n]")]
    step: Annotated[npt.NDArray[np.int32], doc("step, -1 for none [n]")]
    samples: Annotated[list[str], doc("sample, or empty [n]")]
    groups: Annotated[list[str], doc("group, or empty [n]")]


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Merged intervals: a cell is one lane, one kind of work and one part of the window. Empty ones are left out."""

    lane: Annotated[npt.NDArray[np.uint16], doc("index of the lane [m]")]
    cell: Annotated[npt.NDArray[np.uint16], doc("index of the part of the window [m]")]
    work: Annotated[npt.NDArray[np.uint8], doc("index of the kind of work [m]")]
    mean: Annotated[npt.NDArray[np.float32], doc("mean number of intervals at once [m]")]


@dataclass(frozen=True, kw_only=True)
class Window:
    """A window of a timeline."""

    bars: Bars
    cells: Cells
    dense: Annotated[list[bool], doc("whether the intervals of a lane are merged [lanes]")]
    counts: Annotated[list[int], doc("number of intervals of a lane in the window [lanes]")]
    busy: Annotated[list[float], doc("time with at least one interval [s, lanes]")]
    idle: Annotated[list[Idle], doc("the longest idle times of workers")]


def window_of(lanes: Lanes, begin: float, end: float, parts: int) -> Window:
    """Return what is between two times [s]. parts: number of cells in a lane, the width in pixels."""
    bounds = np.linspace(begin, end, parts + 1)
    counts = [lane.count(begin, end) for lane in lanes.every]
    left, dense = MOST_BARS, []
    for count in counts:
        dense.append(count > min(LANE_BARS, left))
        left -= 0 if dense[-1] else count
    shortest = IDLE_CELLS * (end - begin) / parts
    idle = [
        entry for index in range(len(lanes.every)) for entry in idle_of(lanes, index, begin, end, shortest, MOST_IDLE)
    ]
    return Window(
        bars=_bars(lanes, [index for index, is_dense in enumerate(dense) if not is_dense], begin, end),
        cells=_cells([(index, lane) for index, lane in enumerate(lanes.every) if dense[index]], bounds),
        dense=dense,
        counts=counts,
        busy=[float(lane.load.busy(begin, end)) for lane in lanes.every],
        idle=idle,
    )


def _bars(lanes: Lanes, indexes: list[int], begin: float, end: float) -> Bars:
    chosen = [(index, lanes.every[index], lanes.every[index].inside(begin, end)) for index in indexes]

    def joined(parts: list[npt.NDArray[Number]], kind: type[Number]) -> npt.NDArray[Number]:
        return np.concatenate([np.empty(0, kind), *parts]).astype(kind)

    rows = joined([lane.rows[at] for _, lane, at in chosen], np.int64)
    return Bars(
        lane=joined([np.full(len(at), index, np.uint16) for index, _, at in chosen], np.uint16),
        track=joined([lane.tracks(at) for _, lane, at in chosen], np.uint16),
        work=joined([lane.works[at] for _, lane, at in chosen], np.uint8),
        start=joined([lane.starts[at] for _, lane, at in chosen], np.float64),
        end=joined([lane.ends[at] for _, lane, at in chosen], np.float64),
        version=lanes.numbers("version", rows).astype(np.int32),
        step=lanes.numbers("step", rows).astype(np.int32),
        samples=lanes.texts("sample", rows),
        groups=lanes.texts("group_id", rows),
    )


def _cells(chosen: list[tuple[int, Lane]], bounds: Seconds) -> Cells:
    width = np.diff(bounds)
    of_lanes = []
    for index, lane in chosen:
        for work, load in lane.loads.items():
            mean = load.covered(bounds[:-1], bounds[1:]) / width
            full = np.flatnonzero(mean > LEAST)
            of_lanes.append((np.full(len(full), index), full, np.full(len(full), work), mean[full]))
    columns = [np.concatenate([np.empty(0), *parts]) for parts in zip(*of_lanes, strict=True)] or [np.empty(0)] * 4
    return Cells(
        lane=columns[0].astype(np.uint16),
        cell=columns[1].astype(np.uint16),
        work=columns[2].astype(np.uint8),
        mean=columns[3].astype(np.float32),
    )
