"""`Moments`: a run at any position of its log, by a timeline that stays open and the views that were read last."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

import msgspec

from serve_apps.http.console.run_source import RunSource
from slime_events.analysis.timetravel.newest_moment import NewestMoment
from slime_events.analysis.timetravel.read_moment import (
    LOOKAHEAD,
    MomentInLog,
    ReadStatus,
    open_timeline,
    read_moment,
)
from slime_events.analysis.timetravel.timeline import Timeline
from slime_events.core.run.run_reader import OpenedRun
from slime_events.core.state.run import RunPhase
from slime_events.model.run_status import RunStatus, last_run_event, status_of

KEPT = 32
"""Moments that are kept: one of two compared positions usually stays while the other one is moved."""
OVER = (RunPhase.FINISHED, RunPhase.FAILED)
"""Phases that do not depend on whether a launcher is running."""


def status_reader(source: RunSource) -> ReadStatus:
    """Return what reads the status of a run now, with a look for its launcher."""

    async def read_status(run: OpenedRun) -> RunStatus:
        launched = await source.is_on(run) or (None if run.folder is None else False)
        return status_of(await last_run_event(run.log), launched)

    return read_status


class Moments:
    """Moments of an opened run. Seeks of one run are done one after the other."""

    def __init__(self, opened: OpenedRun) -> None:
        self._opened, self._lock = opened, asyncio.Lock()
        self._timeline: Timeline | None = None
        self._newest = NewestMoment(opened)
        self._kept: OrderedDict[int, MomentInLog] = OrderedDict()

    async def newest(self, read_status: ReadStatus) -> MomentInLog:
        """Read the run at the end of its log. Raises as `at`."""
        async with self._lock:
            return await self._newest.read(read_status)

    async def at(self, text: str, read_status: ReadStatus) -> MomentInLog:
        """Read the run at a position, in any form of `LogPosition`.

        Raises InvalidValue for a text that is not a position, RunNotFound if the run has no such position, and the
        log's errors.
        """
        async with self._lock:
            return await self._read(await self._grown(), text, read_status)

    async def _read(self, timeline: Timeline, text: str, read_status: ReadStatus) -> MomentInLog:
        kept = self._kept.get(int(text)) if text.isascii() and text.isdigit() and len(text) < 20 else None
        moment = kept or await read_moment(self._opened, timeline, text, read_status)
        position = moment.view.position
        if position < timeline.end or moment.view.phase in OVER:  # else its status may change without an event
            self._kept[position] = moment
            self._kept.move_to_end(position)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return moment._replace(view=msgspec.structs.replace(moment.view, end=timeline.end))

    async def _grown(self) -> Timeline:
        """Return the timeline up to the log's end. Moments whose look-ahead saw the old end are forgotten."""
        timeline = self._timeline
        if timeline is None or await self._opened.log.position() != timeline.end:
            end = timeline.end if timeline else 0
            for position in [position for position in self._kept if position + LOOKAHEAD > end]:
                del self._kept[position]
            timeline = self._timeline = await open_timeline(self._opened)
        return timeline
