"""`Timeline`: random access to the moments of a run's log.

position -> the last point before it (seek_index) -> checked against the log -> the few events from there on -> Moment
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from schemas.errors import RunNotFound
from schemas.steps import StepCommitted
from slime_events.analysis.timetravel.log_position import Anchor, LogPosition
from slime_events.analysis.timetravel.moment import Moment
from slime_events.analysis.timetravel.seek_index import EVERY, Mark, SeekIndex
from slime_events.core.state.run import RunState
from slime_events.model.lookup import LogPart
from storage.event_block import HasEventBlocks
from storage.log import Readable, Recorded


class Timeline:
    """Random access to a log. log: live, finished or archived. folder: for its seek index. end: last position."""

    def __init__(self, log: Readable, folder: Path, *, every: int = EVERY) -> None:
        self._log, self._every = log, every
        self._seek = SeekIndex(log.run, folder)
        self.end = 0

    async def open(self, on_index: Callable[[int], None] = lambda events: None) -> Timeline:
        """Bring the index up to the log's end. on_index: called with the number of events to fold, if there are many.

        Raises RunNotFound for an empty log, StorageError, SchemaError, LogDamaged, ArchiveDamaged.
        """
        self.end = await self._log.position()
        if not self.end:
            raise RunNotFound(f"the log of run {self._log.run} has no events yet")
        marks = self._seek.index.marks
        moment = await self._fold(marks[-1] if marks else None, lambda recorded: True)
        if not moment.position:
            marks.clear()  # they belong to another history
        behind = self.end - moment.position
        if behind >= self._every:
            on_index(behind)
            await self._index(moment)
        return self

    async def _index(self, moment: Moment) -> None:
        """Store a snapshot at each interval of the events behind `moment`."""
        log, start, chain = self._log, moment.position + 1, bytes.fromhex(moment.state.chain)
        if isinstance(log, HasEventBlocks):
            async with contextlib.aclosing(log.event_blocks(start, chain, self._every)) as blocks:
                async for block in blocks:
                    moment.apply_all(block)
                    if not moment.position % self._every:
                        self._seek.add(moment)
        else:
            async with contextlib.aclosing(log.read(start)) as read:  # type: ignore[type-var]
                async for recorded in read:
                    moment.apply(recorded)
                    if not moment.position % self._every:
                        self._seek.add(moment)
                    if recorded.position == self.end:
                        break
        self._seek.save()

    async def seek(self, position: LogPosition) -> Moment:
        """Return the run at that position. Raises RunNotFound if the log does not have it."""
        match position.anchor:
            case Anchor.POSITION:
                return await self._at(position.number)
            case Anchor.STEP:
                return await self._after_step(position.number)
            case Anchor.TIME:
                return await self._at_time(position.number)
            case Anchor.START:
                return await self._at_time((await self._record(1)).envelope.at + position.number)
            case Anchor.END:
                return await self._at_time((await self._record(self.end)).envelope.at - position.number)

    async def _at(self, position: int) -> Moment:
        if not 1 <= position <= self.end:
            raise RunNotFound(f"run {self._log.run} has no position {position}: there are 1 to {self.end}")
        return await self._fold(self._seek.index.before(position), lambda recorded: recorded.position > position)

    async def _after_step(self, step: int) -> Moment:
        async for recorded in LogPart(self._log, self.end).of_type(StepCommitted, str(step)):
            return await self._at(recorded.position)
        steps = (await self._at(self.end)).state.steps
        raise RunNotFound(f"run {self._log.run} has not committed step {step}. It has {steps} committed steps, from 0")

    async def _at_time(self, at: int) -> Moment:
        moment = await self._fold(self._seek.index.before_time(at), lambda recorded: recorded.envelope.at > at)
        if moment.last is None:
            raise RunNotFound(f"run {self._log.run} had not started at that time")
        return moment

    async def _record(self, position: int) -> Recorded:
        async with contextlib.aclosing(self._log.read(position)) as read:  # type: ignore[type-var]
            return await anext(read)

    async def _fold(self, mark: Mark | None, stop: Callable[[Recorded], bool]) -> Moment:
        """Fold from the point of a mark, or from the beginning if no point fits, to just before the first event with
        `stop`.
        """
        point = None if mark is None else self._seek.point(mark)
        moment = Moment(RunState(run=self._log.run))
        async with contextlib.aclosing(self._log.read(point.position if point else 1)) as read:  # type: ignore[type-var]
            async for recorded in read:
                if point is not None and recorded.position == point.position:
                    if not point.is_followed_by(recorded.data):
                        break  # the log has another history
                    moment = Moment(point.state, point.context, point.before, recorded)
                    continue
                if recorded.position > self.end or stop(recorded):
                    return moment
                moment.apply(recorded)
        if point is not None and not moment.position:
            return await self._fold(None, stop)
        return moment
