"""`read_run_view`: reads the view of a run from its log, from its launcher's snapshot on or from the beginning."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from schemas.commands import CommandDone, CommandGiven
from schemas.event import Event, type_of
from schemas.subjects import of_type
from slime_events.analysis.views.disk import Disk, view_disk
from slime_events.analysis.views.run import Calls, RunView, view_run
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.state.keeper import StateKeeper
from slime_events.core.state.snapshot import Snapshots
from slime_events.model import Run, fold_run, read_run
from slime_events.model.foreign import NO_FOREIGN, ForeignRecords, read_foreign
from slime_events.model.progress import Progress, ProgressSnapshot, StepLine
from slime_events.model.run_status import status_of
from storage.jetstream.log import JetStreamLog
from storage.log import Readable, Recorded

LOOKED_UP = ("run.*", "eval.completed", "worker.*", "prompt.rejected", "group.rejected")
"""Event types that a run's view needs besides its progress. A step has few of them."""


async def read_whole_run(log: Readable) -> tuple[Run, Progress, list[StepLine]]:
    """Read the log once, and return the run's records, its progress and all its steps."""
    progress, steps = Progress(log.run), list[StepLine]()

    def apply(recorded: Recorded) -> None:
        if (line := progress.apply(recorded)) is not None:
            steps.append(line)

    return await read_run(log, apply), progress, steps


async def look_run_up(log: Readable, folder: RunFolder) -> tuple[Run, Progress, list[StepLine]]:
    """Return the run's records, progress and newest steps, read from the launcher's snapshot.

    The records hold no groups and samples.
    """
    progress = Progress(log.run)
    snapshots = Snapshots(folder.path / "snapshots" / "launcher", ProgressSnapshot)
    await StateKeeper(snapshots, folder.archive_url()).restore(progress, log)
    async for recorded in log.read(progress.state.position + 1):
        progress.apply(recorded)
    events = [recorded for kind in LOOKED_UP async for recorded in log.read(1, of_type(log.run, kind))]
    ordered = sorted(events, key=lambda recorded: recorded.position)
    return fold_run(log.run, ordered), progress, progress.figures.steps


async def read_calls(log: Readable) -> Calls | None:
    """Return the number of calls, of calls carried out, and the models of a run that a client drives, else None."""

    async def named(kind: type[Event]) -> list[str]:
        return [subject.rpartition(".")[2] for subject in await log.subjects(of_type(log.run, type_of(kind)), 1)]

    commands = await named(CommandGiven)
    if not commands:
        return None
    models = dict.fromkeys(name.rpartition("-")[0] for name in sorted(commands))
    return Calls(given=len(commands), done=len(await named(CommandDone)), models=tuple(models))


async def read_run_view(
    log: Readable, folder: RunFolder | None = None, *, launched: bool | None = None, every_step: bool = True
) -> RunView:
    """Read the view of a run now.

    folder: of the run; None for an archive. launched: whether its launcher is running; None if unknown. every_step:
    read the whole log, so that the view has all steps; else read from the launcher's snapshot on, for the newest steps.
    """
    run, progress, steps = await (read_whole_run(log) if every_step or folder is None else look_run_up(log, folder))
    foreign, calls = await read_foreign(log, progress.state), await read_calls(log)
    disk = None
    if folder is not None:
        extent = await log.extent() if isinstance(log, JetStreamLog) else None
        disk = await asyncio.to_thread(view_disk, folder, extent)
    return view_run_now(run, progress, steps, launched, foreign, calls, disk)


def view_run_now(
    run: Run,
    progress: Progress,
    steps: Sequence[StepLine],
    launched: bool | None = None,
    foreign: ForeignRecords = NO_FOREIGN,
    calls: Calls | None = None,
    disk: Disk | None = None,
) -> RunView:
    """Return the view of a run now.

    launched: whether a launcher is running; None if unknown. foreign: records on the stream that are not events.
    calls: result of `read_calls`.
    """
    end = run.lifetime[-1].event if run.lifetime else None
    now = time.time_ns() if end is None or launched else run.last_at
    return view_run(run, progress, steps, status_of(end, launched).value, now, foreign, calls, disk)
