"""*Runs*: the list of runs, the state of one, and its changes as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse

from schemas.doc import doc
from serve_apps.http.console.open_runs import OpenRun, OpenRuns
from serve_apps.http.console.pace import Pace
from serve_apps.http.console.run_source import ListedRun
from serve_apps.http.console.view import ROOT, ConsoleView, RunName, answered, documented


class RunList(msgspec.Struct, frozen=True, kw_only=True):
    """The served runs."""

    where: Annotated[str, doc("folder of the runs, or the one run that is served")]
    runs: Annotated[tuple[ListedRun, ...], doc("the runs, the run with the newest event first")]
    command: Annotated[str, doc("command that lists them")]


class RunChange(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run's log and tables."""

    run: Annotated[str, doc("name of the run")]
    position: Annotated[int, doc("last position of the log that the tables include; 0 until they are computed")]
    end: Annotated[int, doc("last position of the log")]
    on: Annotated[bool, doc("whether its launcher is running")]


def _add(router: APIRouter, runs: OpenRuns) -> None:
    @router.get("/api/runs", **documented(RunList, "List the runs"))
    async def listed() -> Response:
        every = await runs.source.listed()
        return answered(RunList(where=runs.source.where, runs=every, command="slime-events show"))

    @router.get(ROOT, **documented(RunChange, "Get the state of a run"))
    async def state(run: RunName) -> Response:
        async with runs.use(run) as opened:
            return answered(await _state(opened, on=await runs.source.is_on(opened.opened)))

    @router.get(f"{ROOT}/changes", **documented(RunChange, "Follow a run: an event `change` for each new state"))
    async def changes(run: RunName) -> Response:
        async with runs.use(run):  # an unknown run is refused before the stream begins
            return StreamingResponse(_changes(runs, run), media_type="text/event-stream")


async def _state(opened: OpenRun, *, on: bool, waits: bool = True) -> RunChange:
    """Return the state of a run. waits: for the tables, if they are not computed yet."""
    position = (await opened.snapshot()).position if waits or opened.is_ready else 0
    return RunChange(run=opened.opened.run, position=position, end=await opened.opened.log.position(), on=on)


async def _changes(runs: OpenRuns, run: str) -> AsyncIterator[bytes]:
    """Yield the state of a run when it changes, until the run has ended and the tables have all of it."""
    before: RunChange | None = None
    pace = Pace()
    async with runs.use(run) as opened:
        while True:
            on = await runs.source.is_on(opened.opened)
            if before is not None:  # the first state is of the tables that requests before it have read
                await opened.refreshed(at_once=not on)
            state = await _state(opened, on=on, waits=before is not None)
            if state != before:
                before = state
                yield b"event: change\ndata: %s\n\n" % msgspec.json.encode(state)
            if not state.on and state.position == state.end:
                yield b"event: end\ndata: {}\n\n"
                return
            if state.position:
                await asyncio.sleep(pace.pause_s())


VIEW = ConsoleView("runs", (RunList, RunChange), _add)
