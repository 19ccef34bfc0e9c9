"""*Now*: the state of a run, who does what, who waits for what, and the alarms."""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
from fastapi import APIRouter, Response

from schemas.doc import doc
from serve_apps.http.console.activities import UNGRADED, Activity, Waited, activities_of, has_ungraded
from serve_apps.http.console.moments import status_reader
from serve_apps.http.console.open_runs import OpenRun, OpenRuns
from serve_apps.http.console.view import ROOT, AnswerSource, ConsoleView, RunName, answered, command_source, documented
from slime_events.analysis.query.inspection import Checked
from slime_events.analysis.timetravel.moment import RunDecision
from slime_events.analysis.timetravel.moment_view import MomentView
from slime_events.model.run_status import MEANINGS, RunStatus

RESUMED = (RunStatus.INTERRUPTED, RunStatus.FAILED, RunStatus.KILLED)
"""Statuses of runs that `resume` continues."""
DECISIONS = 20
"""Newest decisions that are listed."""
SQL = (
    "SELECT status, count(*) AS samples, min(requested) AS oldest FROM samples WHERE step IS NULL "
    "GROUP BY status ORDER BY status"
)


class NowPage(msgspec.Struct, frozen=True, kw_only=True):
    """A run at the end of its log."""

    status: Annotated[RunStatus, doc("status of the run")]
    meaning: Annotated[str, doc("what the status means, and what to do")]
    failure: Annotated[str, doc("why the run failed; empty if it did not")]
    mend: Annotated[str | None, doc("command that continues the run; None if there is nothing to continue")]
    position: Annotated[int, doc("last position of the log")]
    at: Annotated[int, doc("UTC of the last event [ns]")]
    now: Annotated[int, doc("UTC to which times are counted [ns]: now if the run is on, else that of the last event")]
    waits_for: Annotated[str | None, doc("what the run waits for; None if it is not running")]
    steps: Annotated[int, doc("number of committed steps")]
    steps_wanted: Annotated[int | None, doc("number of steps that are planned; None if unknown")]
    version: Annotated[int, doc("newest weight version")]
    open_groups: Annotated[int, doc("number of groups that are neither rejected nor trained on")]
    room: Annotated[int | None, doc("most open groups that the settings allow; None if unknown")]
    behind: Annotated[dict[int, int], doc("number of open groups by the versions that they are behind")]
    staleness_bound: Annotated[int | None, doc("most versions that they may be behind; None if unknown")]
    activities: Annotated[tuple[Activity, ...], doc("who does what; empty if the run is not running")]
    workers: Annotated[dict[str, str], doc("role by worker, for workers that joined and were not lost")]
    decisions: Annotated[tuple[RunDecision, ...], doc("newest decisions, the newest first")]
    source: Annotated[AnswerSource, doc("command and query for it")]


class Alarms(msgspec.Struct, frozen=True, kw_only=True):
    """Detectors that may raise an alarm while a run is on, with their findings."""

    position: Annotated[int, doc("last position of the log that they include")]
    graded: Annotated[int, doc("number of graded training samples")]
    detectors: Annotated[tuple[Checked, ...], doc("the detectors; one without findings is no alarm")]
    command: Annotated[str, doc("command that gives the same, for a shell")]


async def read_now(runs: OpenRuns, opened: OpenRun) -> NowPage:
    """Read a run at the end of its log. Raises RunNotFound for an empty log, and the log's errors."""
    read_status = status_reader(runs.source)
    view = (await opened.moments.newest(read_status)).view
    source = command_source(opened, "show", f"--at {view.position}", SQL, view.position)
    waited = Waited(opened.opened.settings, opened.argument, await _ungraded_since(opened, view))
    return now_page(view, await read_status(opened.opened), waited, source)


async def _ungraded_since(opened: OpenRun, view: MomentView) -> int | None:
    """Return the UTC of the oldest completed sample without a reward [ns], by the tables as they are."""
    if view.waits_for is None or not has_ungraded(view):
        return None
    _, rows = await opened.rows(f"SELECT epoch_ns(min(completed)) AS since FROM ({UNGRADED})")
    since: int | None = rows["since"][0].as_py()
    return since


def now_page(view: MomentView, status: RunStatus, waited: Waited, source: AnswerSource) -> NowPage:
    """Return the page of a run at the end of its log."""
    argument = waited.argument
    is_on = status is RunStatus.RUNNING
    return NowPage(
        status=status,
        meaning=MEANINGS[status].format(run=argument),
        failure=view.failure,
        mend=f"slime-events resume {argument}" if status in RESUMED else None,
        position=view.position,
        at=view.at,
        now=max(view.at, time.time_ns()) if is_on else view.at,
        waits_for=view.waits_for,
        steps=view.steps,
        steps_wanted=view.steps_wanted,
        version=view.version,
        open_groups=view.backpressure.open,
        room=view.backpressure.room,
        behind=view.staleness.behind,
        staleness_bound=view.staleness.bound,
        activities=activities_of(view, waited) if is_on else (),
        workers=view.workers if is_on else {},
        decisions=view.decisions[: -DECISIONS - 1 : -1],
        source=source,
    )


def _add(router: APIRouter, runs: OpenRuns) -> None:
    @router.get(f"{ROOT}/now", **documented(NowPage, "Get the state of a run"))
    async def now(run: RunName) -> Response:
        async with runs.use(run) as opened:
            return answered(await read_now(runs, opened))

    @router.get(f"{ROOT}/alarms", **documented(Alarms, "Get the alarms"))
    async def alarms(run: RunName) -> Response:
        async with runs.use(run) as opened:
            status = await status_reader(runs.source)(opened.opened)
            inspected = await opened.inspected(is_on=status is RunStatus.RUNNING)
            command = f"slime-events inspect {opened.argument} --alarms"
            return answered(
                Alarms(
                    position=inspected.position,
                    graded=inspected.inspection.graded,
                    detectors=inspected.inspection.detectors,
                    command=command,
                )
            )


VIEW = ConsoleView("now", (NowPage, Alarms), _add)
