"""`NewestMoment`: a run at the end of a log that grows, by folding the new events alone."""

from __future__ import annotations

import contextlib

from slime_events.analysis.timetravel.log_position import Anchor, LogPosition
from slime_events.analysis.timetravel.moment import Moment
from slime_events.analysis.timetravel.moment_view import view_moment
from slime_events.analysis.timetravel.read_moment import (
    MomentInLog,
    ReadStatus,
    open_timeline,
    status_without_launcher,
)
from slime_events.core.run.run_reader import OpenedRun


class NewestMoment:
    """The moment at the end of a run's log. One call at a time."""

    def __init__(self, opened: OpenedRun) -> None:
        self._opened = opened
        self._moment: Moment | None = None

    async def read(self, read_status: ReadStatus) -> MomentInLog:
        """Read the run at the end of its log. Raises RunNotFound for an empty log, and the log's errors."""
        moment = self._moment
        if moment is None or not await self._follow(moment):
            timeline = await open_timeline(self._opened)
            moment = self._moment = await timeline.seek(LogPosition(Anchor.POSITION, timeline.end))
        status = await status_without_launcher(self._opened, moment, read_status)
        return MomentInLog(view_moment(moment, moment.position, status=status), moment.last)

    async def _follow(self, moment: Moment) -> bool:
        """Fold the events behind a moment into it. Returns whether the log has the moment's history."""
        log, begin = self._opened.log, moment.position
        end = await log.position()
        if end <= begin:
            return end == begin
        async with contextlib.aclosing(log.read(begin)) as read:  # type: ignore[type-var]
            async for recorded in read:
                if recorded.position == begin:
                    if moment.last is None or recorded.data != moment.last.data:
                        return False
                    continue
                moment.apply(recorded)
                if recorded.position >= end:
                    break
        return moment.position == end
