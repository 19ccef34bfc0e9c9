"""`run_list`: the runs in a folder and where each of them stands, for a command that was given none."""

import asyncio
import json
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.errors import SlimeEventsError
from schemas.runs import RunFailed
from slime_events.app.cli.render.text import moment, shorten, table
from slime_events.app.launch.run_lock import is_held
from slime_events.app.launch.run_record import read_run_record
from slime_events.app.launch.run_status import RunStatus, is_launched, status_of
from slime_events.core.run.run_folder import RunFolder
from storage.open_log import open_run_log

REASON_WIDTH = 80
READ_DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True)
class RunRow:
    """steps: committed, of wanted. at: UTC nanoseconds of its last event. reason: why it failed, or why it cannot be
    read; its status is None then.
    """

    run: str
    status: RunStatus | None
    steps: int | None = None
    wanted: int | None = None
    at: int | None = None
    reason: str = ""


def run_rows(runs_dir: str | Path) -> list[RunRow]:
    """Every run in the folder, the newest last event first."""
    return sorted(asyncio.run(_rows(Path(runs_dir))), key=lambda row: -(row.at or 0))


async def _rows(runs_dir: Path) -> list[RunRow]:
    """By the summary of an ended incarnation; else by the log, which is slower."""
    rows = []
    for settings in sorted(runs_dir.glob("*/settings.toml")):
        try:
            folder = RunFolder(runs_dir, settings.parent.name)
        except SlimeEventsError:
            continue  # a name that no run can have
        try:
            rows.append(summarised(folder) or await _read(folder))
        except SlimeEventsError as error:
            rows.append(RunRow(folder.run, None, reason=str(error)))
    return rows


def summarised(folder: RunFolder) -> RunRow | None:
    """By its summary; None without one. A summary older than the settings is of an earlier incarnation."""
    try:
        if is_held(folder) or folder.settings.stat().st_mtime > folder.summary.stat().st_mtime:
            return None
        summary: dict[str, Any] = json.loads(folder.summary.read_text(encoding="utf-8"))
        settings = tomllib.loads(folder.settings.read_text(encoding="utf-8"))
        steps, wanted = int(summary["steps"]), settings.get("rollout", {}).get("num_rollout")
        if summary["phase"] == "failed":
            status = RunStatus.FAILED
        elif summary["phase"] == "finished":
            status = RunStatus.INTERRUPTED if wanted is not None and steps < wanted else RunStatus.FINISHED
        else:
            return None
        at = int(summary.get("last_event_at") or folder.summary.stat().st_mtime_ns)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return RunRow(folder.run, status, steps, wanted, at, summary.get("failure") or "")


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
    """The rows, for people."""
    rows = []
    for row in run_rows(runs_dir):
        wanted = "" if row.wanted is None else f" of {row.wanted}"
        steps = "" if row.steps is None else f"{row.steps}{wanted}"
        at = moment(row.at) if row.at else ""
        rows.append((row.run, row.status or "unreadable", steps, at, shorten(row.reason, REASON_WIDTH)))
    if not rows:
        return f"no runs in {Path(runs_dir).absolute()}"
    return f"runs in {Path(runs_dir).absolute()}\n\n{table(('run', 'status', 'steps', 'last event', ''), rows)}"
