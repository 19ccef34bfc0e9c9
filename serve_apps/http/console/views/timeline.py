"""*Timeline*: what each worker did and what each rollout waited for, in lanes, at any zoom."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import numpy.typing as npt
from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse

from schemas.doc import doc
from schemas.errors import BadQuery
from serve_apps.http.console.frame import FRAME, framed
from serve_apps.http.console.kept_lanes import PlacedLanes
from serve_apps.http.console.open_runs import OpenRuns
from serve_apps.http.console.view import ROOT, AnswerSource, ConsoleView, RunName, documented, query_source
from slime_events.analysis.lanes.chrome_trace import MEDIA_TYPE, chrome_trace
from slime_events.analysis.lanes.idle import Idle
from slime_events.analysis.lanes.lanes import Lanes
from slime_events.analysis.lanes.window import Window, window_of

SHORTEST = 1e-5
"""Shortest window [s]: times have microseconds."""
Begin = Annotated[float | None, Query(alias="from", description="begin of the window [s since the origin]")]
End = Annotated[float | None, Query(alias="to", description="end of the window [s since the origin]")]
Parts = Annotated[int, Query(ge=1, le=4000, description="cells of a lane: the width in pixels")]
ARRAYS = {
    "bar_lane": "uint16",
    "bar_track": "uint16",
    "bar_work": "uint8",
    "bar_start": "float64",
    "bar_end": "float64",
    "bar_version": "int32",
    "bar_step": "int32",
    "cell_lane": "uint16",
    "cell_at": "uint16",
    "cell_work": "uint8",
    "cell_mean": "float32",
}


class LaneHead(msgspec.Struct, frozen=True, kw_only=True):
    """A lane."""

    role: Annotated[str, doc("role of its worker, or `waiting`")]
    name: Annotated[str, doc("worker, or the kind of wait")]
    title: Annotated[str, doc("name for people")]
    depth: Annotated[int, doc("most intervals at once in the whole run")]
    intervals: Annotated[int, doc("number of its intervals in the window")]
    busy: Annotated[float, doc("time of the window with at least one interval [s]")]
    dense: Annotated[bool, doc("whether its intervals are merged to cells")]


class TimelineHead(msgspec.Struct, frozen=True, kw_only=True):
    """The head of a timeline's frame. Times are seconds since the origin."""

    origin: Annotated[int, doc("UTC of the first start [us]")]
    length: Annotated[float, doc("end of the last interval [s]")]
    begin: Annotated[float, doc("begin of the window [s]")]
    end: Annotated[float, doc("end of the window [s]")]
    parts: Annotated[int, doc("number of cells of a lane")]
    works: Annotated[tuple[str, ...], doc("kinds of work")]
    lanes: Annotated[tuple[LaneHead, ...], doc("lanes, from the top")]
    samples: Annotated[tuple[str, ...], doc("sample of each bar; empty if it has none")]
    groups: Annotated[tuple[str, ...], doc("group of each bar; empty if it has none")]
    idle: Annotated[tuple[Idle, ...], doc("the longest idle times of engines, graders and trainer")]
    arrays: Annotated[dict[str, tuple[str, int]], doc("arrays after the head, in order: name to type and length")]
    source: Annotated[AnswerSource, doc("query for the intervals of the window")]


def bounds(lanes: Lanes, begin: float | None, end: float | None) -> tuple[float, float]:
    """Return a window's bounds [s]; by default those of the whole run. Raises BadQuery."""
    first, last = 0.0 if begin is None else begin, lanes.length if end is None else end
    if not -1e12 < first <= last < 1e12:
        raise BadQuery(f"the window from {first} to {last} has no length: `from` must be before `to`, in seconds")
    return first, max(last, first + SHORTEST)


def sql_of(lanes: Lanes, begin: float, end: float) -> str:
    """Return the query for the intervals that a window touches."""
    first, last = (f"make_timestamp({lanes.origin + round(at * 1e6)})" for at in (begin, end))
    return f"SELECT * FROM intervals WHERE ended >= {first} AND started <= {last} ORDER BY started"


def timeline_frame(placed: PlacedLanes, begin: float | None, end: float | None, parts: int, argument: str) -> bytes:
    """Return a window as a frame. argument: names the run to a command. Raises BadQuery."""
    lanes = placed.lanes
    first, last = bounds(lanes, begin, end)
    window = window_of(lanes, first, last, parts)
    arrays = _arrays(window)
    head = TimelineHead(
        origin=lanes.origin,
        length=lanes.length,
        begin=first,
        end=last,
        parts=parts,
        works=lanes.works,
        lanes=tuple(
            LaneHead(
                role=lane.name.role,
                name=lane.name.name,
                title=lane.name.title,
                depth=lane.depth,
                intervals=window.counts[index],
                busy=window.busy[index],
                dense=window.dense[index],
            )
            for index, lane in enumerate(lanes.every)
        ),
        samples=tuple(window.bars.samples),
        groups=tuple(window.bars.groups),
        idle=tuple(window.idle),
        arrays={name: (kind, len(numbers)) for name, (kind, numbers) in arrays.items()},
        source=query_source(argument, sql_of(lanes, first, last), placed.position),
    )
    return framed(head, arrays)


def _arrays(window: Window) -> dict[str, tuple[str, npt.NDArray[Any]]]:
    bars, cells = window.bars, window.cells
    columns: tuple[npt.NDArray[Any], ...] = (
        *(bars.lane, bars.track, bars.work, bars.start, bars.end, bars.version, bars.step),
        *(cells.lane, cells.cell, cells.work, cells.mean),
    )
    return {name: (kind, column) for (name, kind), column in zip(ARRAYS.items(), columns, strict=True)}


def _add(router: APIRouter, runs: OpenRuns) -> None:
    frame = documented(TimelineHead, "Get a window of the timeline: this head, then arrays, see `framed`")

    @router.get(f"{ROOT}/timeline", **frame)
    async def timeline(run: RunName, begin: Begin = None, end: End = None, parts: Parts = 1000) -> Response:
        async with runs.use(run) as opened:
            placed = await opened.lanes.latest()
            return Response(
                await asyncio.to_thread(timeline_frame, placed, begin, end, parts, opened.argument), media_type=FRAME
            )

    @router.get(f"{ROOT}/timeline/trace", include_in_schema=False)
    async def download(run: RunName, begin: Begin = None, end: End = None) -> Response:
        """Download a window in the Trace Event Format, which Perfetto opens."""
        async with runs.use(run) as opened:
            lanes = (await opened.lanes.latest()).lanes
            first, last = bounds(lanes, begin, end)
            parts: Iterator[bytes] = chrome_trace(lanes, run, first, last)
            headers = {"Content-Disposition": 'attachment; filename="timeline.json"'}
            return StreamingResponse(parts, media_type=MEDIA_TYPE, headers=headers)


VIEW = ConsoleView("timeline", (TimelineHead,), _add)
