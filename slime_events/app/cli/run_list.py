"""`run_list`: the runs in a folder with their status, printed by a command that needs a RUN and got none."""

import asyncio
import json
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from schemas.doc import doc
from schemas.errors import SlimeEventsError
from schemas.runs import RunFailed
from slime_events.app.cli.render.text import moment, shorten, table
from slime_events.app.launch.run_lock import is_held
from slime_events.app.launch.run_record import read_run_record
from slime_events.app.launch.run_status import is_launched
from slime_events.core.run.run_folder import RunFolder
from slime_events.model.run_status import RunStatus, status_of
from storage.open_log import open_run_log

REASON_WIDTH = 80
READ_DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in the list."""

    run: str
    status: Annotated[RunStatus | None, doc("None if the run cannot be read")]
    steps: Annotated[int | None, doc("Committed steps")] = None
    target: Annotated[int | None, doc("Steps that the run trains in all; None if it has no such setting")] = None
    at: Annotated[int | None, doc("Time of the last event, in UTC nanoseconds")] = None
    reason: Annotated[str, doc("Why the run failed, or why it cannot be read")] = ""


def run_rows(runs_dir: str | Path) -> list[RunRow]:
    """Return every run in the folder, the run with the newest event first."""
    return asyncio.run(rows_of(Path(runs_dir)))


async def rows_of(runs_dir: Path) -> list[RunRow]:
    """Return every run in the folder, the run with the newest event first."""
    rows = []
    for settings in sorted(runs_dir.glob("*/settings.toml")):
        try:
            folder = RunFolder(runs_dir, settings.parent.name)
        except SlimeEventsError:
            continue  # a name that no run can have
        rows.append(await row_of(folder))
    return sorted(rows, key=lambda row: -(row.at or 0))


async def row_of(folder: RunFolder) -> RunRow:
    """Return the row of a run; of one that cannot be read, with the reason."""
    try:
        return summarised(folder) or await _read(folder)  # to read the log takes longer
    except SlimeEventsError as error:
        return RunRow(folder.run, None, reason=str(error))


def summarised(folder: RunFolder) -> RunRow | None:
    """Return the row from the run's summary, or None if its last incarnation left none.

    A summary that is older than the settings belongs to an earlier incarnation.
    """
    try:
        if is_held(folder) or folder.settings.stat().st_mtime > folder.summary.stat().st_mtime:
            return None
        summary: dict[str, Any] = json.loads(folder.summary.read_text(encoding="utf-8"))
        settings = tomllib.loads(folder.settings.read_text(encoding="utf-8"))
        steps, target = int(summary["steps"]), settings.get("rollout", {}).get("num_rollout")
        if summary["phase"] == "failed":
            status = RunStatus.FAILED
        elif summary["phase"] == "finished":
            status = RunStatus.INTERRUPTED if target is not None and steps < target else RunStatus.FINISHED
        else:
            return None
        at = int(summary.get("last_event_at") or folder.summary.stat().st_mtime_ns)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return RunRow(folder.run, status, steps, target, at, summary.get("failure") or "")


async def _read(folder: RunFolder) -> RunRow:
    async with open_run_log(folder.path, folder.log_name(), deadline_s=READ_DEADLINE_S) as log:
        record = await read_run_record(log)
        last = record.last.envelope.event
        status = status_of(last, await is_launched(folder, log))
        newest = [recorded async for recorded in log.read(await log.position())]
    reason = last.reason if isinstance(last, RunFailed) else ""
    at = newest[-1].envelope.at if newest else time.time_ns()
    return RunRow(folder.run, status, record.steps, record.settings.rollout.num_rollout, at, reason)


def run_list(runs_dir: str | Path) -> str:
    """Return the runs in a folder as a table for people."""
    rows = []
    for row in run_rows(runs_dir):
        of_target = "" if row.target is None else f" of {row.target}"
        steps = "" if row.steps is None else f"{row.steps}{of_target}"
        at = moment(row.at) if row.at else ""
        rows.append((row.run, row.status or "unreadable", steps, at, shorten(row.reason, REASON_WIDTH)))
    if not rows:
        return f"no runs in {Path(runs_dir).absolute()}"
    return f"runs in {Path(runs_dir).absolute()}\n\n{table(('run', 'status', 'steps', 'last event', ''), rows)}"
