"""`idle_of`: the gaps of a lane, each with its length and what it waited for."""

from __future__ import annotations

from typing import Annotated

import msgspec

from schemas.doc import doc
from slime_events.analysis.lanes.lane import Gap, Lane
from slime_events.analysis.lanes.lanes import Lanes

WORKERS = ("engine", "grader", "trainer")
"""Roles whose gaps are idle time."""
NOTHING = "further work: the log has none so far"


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which a worker had no work."""

    lane: Annotated[int, doc("index of its lane")]
    start: Annotated[float, doc("its begin [s]")]
    end: Annotated[float, doc("its end [s]")]
    waited_for: Annotated[str, doc("what it waited for, in words")]


def idle_of(lanes: Lanes, index: int, begin: float, end: float, shortest: float, most: int) -> list[Idle]:
    """Return the longest idle times of a lane in a window, in order; none for lanes that are not of a worker.

    shortest: least length of one [s]. most: largest number of them.
    """
    lane = lanes.every[index]
    if lane.name.role not in WORKERS:
        return []
    times = [
        Idle(lane=index, start=gap.start, end=gap.end, waited_for=_reason(lanes, lane, gap))
        for gap in lane.gaps(begin, end, shortest, most)
    ]
    last = float(lane.ends.max())
    if last <= end and lanes.length - last >= max(shortest, 1e-6):
        times.append(Idle(lane=index, start=last, end=lanes.length, waited_for=NOTHING))
    return times


def _reason(lanes: Lanes, lane: Lane, gap: Gap) -> str:
    """Return what a worker waited for in a gap, from the interval that ends it and the events before that."""
    row, work = int(lane.rows[gap.next]), lanes.works[lane.works[gap.next]]
    step, version = lanes.table["step"][row].as_py(), lanes.table["version"][row].as_py()
    if work == "train":
        sealed = lanes.sealed(step)
        if sealed is None or not gap.start < sealed <= gap.end:
            return f"the start of step {step}, whose batch was sealed before"
        return f"the batch of step {step}, which was sealed {_seconds(gap.end - sealed)} before the step began"
    if work == "load":
        return f"weights v{version}"
    sample = lanes.table["sample"][row].as_py()
    if work in ("generate", "tool"):
        requested = lanes.requested(row)
        if requested is None:
            return f"work on {sample}"
        if requested > gap.start:
            return f"a request: {sample} was requested {_seconds(gap.end - requested)} before it began"
        return f"the start of {sample}, which had been requested {_seconds(gap.start - requested)} before"
    if work == "grade":
        return f"a completed rollout: {sample} was next"
    return f"the start of {work}"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
