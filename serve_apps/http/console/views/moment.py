"""*Time machine*: the run at a position of its log, the events just before it, and what differs at another one."""

from __future__ import annotations

import contextlib
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Response

from schemas.doc import doc
from serve_apps.http.console.moments import status_reader
from serve_apps.http.console.open_runs import OpenRun, OpenRuns
from serve_apps.http.console.view import (
    ROOT,
    AnswerSource,
    ConsoleView,
    RunName,
    answered,
    command_source,
    documented,
    query_source,
)
from slime_events.analysis.timetravel.log_position import FORMS
from slime_events.analysis.timetravel.moment_diff import MomentDiff, view_difference
from slime_events.analysis.timetravel.moment_view import MomentView
from storage.log import Readable

DECISIONS = 20
"""Newest decisions that are listed."""
EVENTS = 10
"""Events up to the position that are listed."""
STEPS_SQL = "SELECT step, commit_position FROM steps WHERE commit_position IS NOT NULL ORDER BY commit_position"
_ROWS_SQL = (
    "SELECT position, time, type, entity, producer FROM events WHERE position BETWEEN {} AND {} ORDER BY position"
)

PositionText = Annotated[str | None, Query(max_length=64, description=f"a position: {FORMS}; the log's end without it")]
OtherText = Annotated[str | None, Query(max_length=64, description="a position to compare with")]


class LogEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of the log, without its fields."""

    position: Annotated[int, doc("position of the event")]
    at: Annotated[int, doc("UTC [ns]")]
    type: Annotated[str, doc("type, such as `rollout.completed`")]
    entity: Annotated[str, doc("id of its subject: a sample, a group, a step, a version, a worker")]
    producer: Annotated[str, doc("worker that appended it")]


class MomentPage(msgspec.Struct, frozen=True, kw_only=True):
    """A run at one position of its log."""

    moment: Annotated[MomentView, doc("the run there, with its newest decisions")]
    events: Annotated[tuple[LogEvent, ...], doc("the last events up to the position, the oldest first")]
    difference: Annotated[MomentDiff | None, doc("what differs at the other position; None without one")]
    difference_source: Annotated[
        AnswerSource | None, doc("command for the difference, and query for the events between")
    ]
    source: Annotated[AnswerSource, doc("command for the moment, and query for the events")]


class PositionList(msgspec.Struct, frozen=True, kw_only=True):
    """Positions that a reader may look for."""

    end: Annotated[int, doc("last position of the log")]
    steps: Annotated[tuple[int, ...], doc("committed steps [n]")]
    positions: Annotated[tuple[int, ...], doc("position of the commit of each [n]")]
    source: Annotated[AnswerSource, doc("command and query for them")]


async def read_page(runs: OpenRuns, opened: OpenRun, at: str | None, other: str | None) -> MomentPage:
    """Read a run at a position, and its difference to another one.

    Raises InvalidValue for a text that is not a position, RunNotFound if the run has no such position.
    """
    read_status = status_reader(runs.source)
    moments = opened.moments
    view = (await (moments.newest(read_status) if at is None else moments.at(at, read_status))).view
    difference = difference_source = None
    if other is not None:
        difference = view_difference(view, (await moments.at(other, read_status)).view)
        was, now = difference.start.position, difference.stop.position
        what = f"--at {was} --diff {now}"
        difference_source = command_source(opened, "show", what, _ROWS_SQL.format(was + 1, now), view.end)
    first = max(1, view.position - EVENTS + 1)
    source = command_source(opened, "show", f"--at {view.position}", _ROWS_SQL.format(first, view.position), view.end)
    return MomentPage(
        moment=msgspec.structs.replace(view, decisions=view.decisions[-DECISIONS:]),
        events=await _events(opened.opened.log, first, view.position),
        difference=difference,
        difference_source=difference_source,
        source=source,
    )


async def _events(log: Readable, first: int, last: int) -> tuple[LogEvent, ...]:
    events: list[LogEvent] = []
    async with contextlib.aclosing(log.read(first)) as read:  # type: ignore[type-var]
        async for recorded in read:
            envelope = recorded.envelope
            events.append(
                LogEvent(
                    position=recorded.position,
                    at=envelope.at,
                    type=envelope.type,
                    entity=envelope.event.entity(),
                    producer=envelope.producer,
                )
            )
            if recorded.position >= last:
                break
    return tuple(events)


def _add(router: APIRouter, runs: OpenRuns) -> None:
    @router.get(f"{ROOT}/moment", **documented(MomentPage, "Get a run at a position of its log"))
    async def moment(run: RunName, at: PositionText = None, other: OtherText = None) -> Response:
        async with runs.use(run) as opened:
            return answered(await read_page(runs, opened, at, other))

    @router.get(f"{ROOT}/positions", **documented(PositionList, "List the positions of the steps"))
    async def positions(run: RunName) -> Response:
        async with runs.use(run) as opened:
            position, rows = await opened.rows(STEPS_SQL)
            return answered(
                PositionList(
                    end=await opened.opened.log.position(),
                    steps=tuple(rows["step"].to_pylist()),
                    positions=tuple(rows["commit_position"].to_pylist()),
                    source=query_source(opened.argument, STEPS_SQL, position),
                )
            )


VIEW = ConsoleView("time", (MomentPage, PositionList), _add)
