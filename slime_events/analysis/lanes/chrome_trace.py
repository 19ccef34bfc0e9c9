"""`chrome_trace`: a timeline in the Trace Event Format (JSON) that Perfetto (https://ui.perfetto.dev) opens.

A lane is a process, a track of it a thread: events on a thread never overlap, as the format wants. Times are in
microseconds since the timeline's origin.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.doc import doc
from slime_events.analysis.lanes.lane import Indexes, Lane
from slime_events.analysis.lanes.lanes import Lanes

BATCH = 4096
"""Events of one part of the text."""
MEDIA_TYPE = "application/json"


class TimelineExport(msgspec.Struct, frozen=True, kw_only=True):
    """The extent of a file."""

    run: Annotated[str, doc("name of the run")]
    first: Annotated[int, doc("first position of the log")]
    last: Annotated[int | None, doc("last position of the log; None for its end")]
    intervals: Annotated[int, doc("number of intervals")]
    lanes: Annotated[int, doc("number of lanes")]


def chrome_trace(lanes: Lanes, run: str, begin: float, end: float) -> Iterator[bytes]:
    """Yield the parts of the JSON text with all intervals that a window touches. begin, end: window [s]."""
    facts = {"run": run, "begins_utc_ns": lanes.origin * 1000}
    yield b'{"displayTimeUnit":"ms","otherData":' + msgspec.json.encode(facts) + b',"traceEvents":[\n'
    between = b""
    for number, lane in enumerate(lanes.every, 1):
        inside = lane.inside(begin, end)
        if not len(inside):
            continue
        tracks = lane.tracks(inside)
        yield between + b",\n".join(map(msgspec.json.encode, _names(number, lane, int(tracks.max()))))
        between = b",\n"
        for first in range(0, len(inside), BATCH):
            part = slice(first, first + BATCH)
            events = _events(lanes, number, inside[part], tracks[part])
            yield between + b",\n".join(map(msgspec.json.encode, events))
    yield b"\n]}\n"


def _names(number: int, lane: Lane, last_track: int) -> Iterator[dict[str, Any]]:
    """Yield the metadata events that name and order a lane and its tracks."""
    named = {"process_name": {"name": lane.name.title}, "process_sort_index": {"sort_index": number}}
    for name, facts in named.items():
        yield {"name": name, "ph": "M", "pid": number, "tid": 0, "args": facts}
    for track in range(last_track + 1):
        yield {"name": "thread_name", "ph": "M", "pid": number, "tid": track + 1, "args": {"name": lane.name.name}}


def _events(lanes: Lanes, number: int, chosen: Indexes, tracks: npt.NDArray[np.uint16]) -> Iterator[dict[str, Any]]:
    lane = lanes.every[number - 1]
    rows = lane.rows[chosen]
    facts = {
        "sample": lanes.texts("sample", rows),
        "group": lanes.texts("group_id", rows),
        "step": lanes.numbers("step", rows).tolist(),
        "version": lanes.numbers("version", rows).tolist(),
        "position": lanes.numbers("position", rows).tolist(),
    }
    starts, ends = (np.rint(times[chosen] * 1e6).astype(np.int64) for times in (lane.starts, lane.ends))
    works = [lanes.works[work] for work in lane.works[chosen]]
    for at, (start, duration, work, track) in enumerate(
        zip(starts.tolist(), (ends - starts).tolist(), works, tracks.tolist(), strict=True)
    ):
        event = {"name": work, "cat": lane.name.role, "ts": start, "pid": number, "tid": track + 1}
        event |= {"ph": "X", "dur": duration} if duration else {"ph": "i", "s": "t"}
        args = {name: values[at] for name, values in facts.items() if values[at] not in ("", -1)}
        yield event | {"args": args}
