"""Processes that a launcher left when it was killed: found by the mark that all its descendants inherit."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

import psutil  # type: ignore[import-untyped, unused-ignore]

from schemas.errors import DeadlineExceeded
from slime_events.launch.run_lock import MARK

END_S = 10.0


def end_orphans(mark: str, spare: Collection[int] = ()) -> int:
    """Kill what carries the mark; how many processes that were. spare: pids that are of use (the log's server).

    Nothing is told by its name or pid alone. Raises DeadlineExceeded naming what does not end.
    """
    found = [process for process in psutil.process_iter() if _carries(process, mark) and process.pid not in spare]
    for process in found:
        with contextlib.suppress(psutil.Error):  # psutil compares start times, so that no other process is hit
            process.kill()
    _, alive = psutil.wait_procs(found, timeout=END_S)
    if alive:
        names = ", ".join(str(process.pid) for process in alive)
        raise DeadlineExceeded(f"processes {names} of the killed launcher did not end in {END_S:.0f} s")
    return len(found)


def _carries(process: psutil.Process, mark: str) -> bool:
    try:
        return process.pid != os.getpid() and bool(process.environ().get(MARK) == mark)
    except (psutil.Error, OSError):
        return False  # it has just ended, or is somebody else's
