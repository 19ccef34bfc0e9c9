"""`read_moment`, `read_difference`: read a run at one position of its log, or its changes between two."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Awaitable, Callable
from typing import Annotated, NamedTuple

from schemas.doc import doc
from schemas.event import Event
from schemas.rollouts import RolloutCompleted, RolloutFailed, RolloutProgressed, RolloutSuspended
from schemas.runs import RunResumed
from schemas.turns import TurnBegun
from slime_events.analysis.timetravel.log_position import Anchor, LogPosition, parse_position
from slime_events.analysis.timetravel.moment import Moment
from slime_events.analysis.timetravel.moment_diff import MomentDiff, view_difference
from slime_events.analysis.timetravel.moment_view import LaterEngine, MomentView, open_samples, view_moment
from slime_events.analysis.timetravel.timeline import Timeline
from slime_events.core.run.run_reader import OpenedRun
from slime_events.core.state.run import RunPhase
from slime_events.model.run_status import RunStatus
from storage.archive.index import cache_folder
from storage.log import Readable, Recorded

LOOKAHEAD = 5_000
"""Number of events that `look_ahead` reads."""
ReadStatus = Callable[[OpenedRun], Awaitable[RunStatus]]
"""Returns the status of an opened run now, with a look for its launcher."""


class MomentInLog(NamedTuple):
    """A moment, with the event there."""

    view: Annotated[MomentView, doc("the run at the moment")]
    last: Annotated[Recorded | None, doc("event at its position; None if unknown")]


async def open_timeline(opened: OpenedRun, on_index: Callable[[int], None] = lambda events: None) -> Timeline:
    """Open the timeline of a run, with its index in the run's folder, or for an archive in the cache.

    on_index: called with the number of events to fold, if there are many.
    """
    cached = cache_folder() / "slime-events" / "seek" / hashlib.sha256(opened.where.encode()).hexdigest()[:24]
    return await Timeline(opened.log, opened.folder.seek if opened.folder else cached).open(on_index)


async def read_moment(
    opened: OpenedRun, timeline: Timeline, at: str, read_status: ReadStatus, *, step: int = 0
) -> MomentInLog:
    """Read the run at position `at` plus `step` events.

    Raises InvalidValue for a text that is not a position, RunNotFound if the run has no such position.
    """
    moment = await _seek(timeline, at, step)
    later, status = await look_ahead(opened.log, moment), await _without_launcher(opened, timeline, moment, read_status)
    return MomentInLog(view_moment(moment, timeline.end, later, status), moment.last)


async def read_difference(
    opened: OpenedRun, timeline: Timeline, at: str, other: str, read_status: ReadStatus, *, step: int = 0
) -> MomentDiff:
    """Read the changes between position `at` plus `step` events and position `other`, in either order.

    Raises InvalidValue for a text that is not a position, RunNotFound if the run has no such position.
    """
    views = []
    for text, events in ((at, step), (other, 0)):
        moment = await _seek(timeline, text, events)
        status = await _without_launcher(opened, timeline, moment, read_status)
        views.append(view_moment(moment, timeline.end, status=status))
    return view_difference(*views)


async def _seek(timeline: Timeline, at: str, step: int) -> Moment:
    moment = await timeline.seek(parse_position(at))
    if not step:
        return moment
    return await timeline.seek(LogPosition(Anchor.POSITION, min(max(moment.position + step, 1), timeline.end)))


async def _without_launcher(
    opened: OpenedRun, timeline: Timeline, moment: Moment, read_status: ReadStatus
) -> RunStatus | None:
    """Return the run's status if its launcher died at this moment: at the end of the log, or before a resumption."""
    if moment.position == timeline.end:
        return await status_without_launcher(opened, moment, read_status)
    if moment.state.phase is not RunPhase.RUNNING:
        return None
    async with contextlib.aclosing(opened.log.read(moment.position + 1)) as read:  # type: ignore[type-var]
        resumed = isinstance((await anext(read)).envelope.event, RunResumed)
    return RunStatus.KILLED if resumed else None


async def status_without_launcher(opened: OpenedRun, moment: Moment, read_status: ReadStatus) -> RunStatus | None:
    """Return the status of a run at the end of its log, if its launcher is gone; None if it runs or has ended."""
    if moment.state.phase is not RunPhase.RUNNING:
        return None
    status = await read_status(opened)
    return None if status is RunStatus.RUNNING else status


async def look_ahead(log: Readable, moment: Moment) -> dict[str, LaterEngine]:
    """Return the engines that had the unfinished rollouts of a moment, by sample, from up to `LOOKAHEAD` later events.

    An engine that takes a request appends nothing until it has a chunk or the end, so at the moment itself the log does
    not name it. Samples whose engine is still unknown are left out.
    """
    unknown = {s.sample for s in open_samples(moment.state) if s.sample not in moment.context.engines}
    later: dict[str, LaterEngine] = {}
    async with contextlib.aclosing(log.read(moment.position + 1)) as read:  # type: ignore[type-var]
        async for recorded in read:
            if later.keys() == unknown or recorded.position > moment.position + LOOKAHEAD:
                break
            sample, engine = _engine_of(recorded.envelope.event, recorded.envelope.at)
            if engine is not None and sample in unknown:
                later.setdefault(sample, engine)
    return later


def _engine_of(event: Event, at: int) -> tuple[str, LaterEngine | None]:
    """Return the sample of an event, and the engine that has it."""
    if isinstance(event, RolloutCompleted):
        took = event.timings.generating + event.timings.updating
        return event.rollout or event.sample, LaterEngine(event.engine, at - int(took * 1e9))
    if isinstance(event, RolloutProgressed | RolloutSuspended | RolloutFailed | TurnBegun):
        return event.sample, LaterEngine(event.engine, None)
    return "", None
