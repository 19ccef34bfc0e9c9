"""End processes that a killed parent left behind, found by a mark in the environment that descendants inherit."""

import contextlib
import os
import time
from collections.abc import Collection

import psutil  # type: ignore[import-untyped, unused-ignore]

from schemas.errors import DeadlineExceeded

END_S = 10.0
_STEP_S = 0.05


def end_orphans(mark: str, spare: Collection[int] = (), *, variable: str) -> int:
    """Kill all processes with the mark in the environment `variable`. Returns their number.

    spare: pids to leave alone, such as that of the log's server. Name and pid alone never decide. Raises
    DeadlineExceeded with the pids of processes that do not end.
    """
    orphans = [
        process for process in psutil.process_iter() if _carries(process, variable, mark) and process.pid not in spare
    ]
    for process in orphans:
        with contextlib.suppress(psutil.Error):  # psutil compares start times, so a reused pid is safe
            process.kill()
    until = time.monotonic() + END_S
    while alive := [process for process in orphans if _lives(process)]:
        if time.monotonic() > until:
            pids = ", ".join(str(process.pid) for process in alive)
            raise DeadlineExceeded(
                f"processes {pids}, whose parent was killed, did not end in {END_S:.0f} s: end them by hand"
            )
        time.sleep(_STEP_S)
    return len(orphans)


def _carries(process: psutil.Process, variable: str, mark: str) -> bool:
    try:
        return process.pid != os.getpid() and bool(process.environ().get(variable) == mark)
    except (psutil.Error, OSError):
        return False  # it has just ended, or belongs to another user


def _lives(process: psutil.Process) -> bool:
    """Return whether a process is alive. A zombie is not: in a container, it may stay without a parent to reap it."""
    try:
        return process.is_running() and bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
