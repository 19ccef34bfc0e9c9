"""`KeptLanes`: the lanes of a run's timeline, made again when its log has grown."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, NamedTuple

from schemas.doc import doc
from serve_apps.http.console.pace import LONGEST_OF_TABLES_S, rest_s
from slime_events.analysis.lanes.lanes import SQL, Lanes
from slime_events.analysis.query import RunTables
from slime_events.core.run.run_reader import OpenedRun


class PlacedLanes(NamedTuple):
    """Lanes at a position."""

    lanes: Annotated[Lanes, doc("the lanes")]
    position: Annotated[int, doc("the log's last position when they were made")]
    next_at: Annotated[float, doc("monotonic time before which they are not made again [s]")]


class KeptLanes:
    """Lanes of one run: they are made at the first request, because few readers need them."""

    def __init__(self, opened: OpenedRun, tables: RunTables) -> None:
        self._opened, self._tables = opened, tables
        self._lock = asyncio.Lock()
        self._kept: PlacedLanes | None = None

    async def latest(self) -> PlacedLanes:
        """Return the lanes, made again if the log has grown and the pause since the last time is over. Raises the log's
        errors.
        """
        async with self._lock:
            kept, began = self._kept, time.monotonic()
            if kept is not None and began < kept.next_at:
                return kept
            position = await self._opened.log.position()
            if kept is not None and position == kept.position:
                return kept
            answer = await self._tables.sql(SQL)
            lanes = await asyncio.to_thread(lambda: Lanes.of(answer.arrow()))
            ended = time.monotonic()
            self._kept = PlacedLanes(lanes, position, ended + rest_s(ended - began, LONGEST_OF_TABLES_S))
            return self._kept
