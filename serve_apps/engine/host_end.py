"""How the process that holds SGLang ends: with its parent, with its schedulers, and always wholly."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import time
from pathlib import Path

from serve_apps.engine.engine_folder import clean

PARENT_CHECK_S = 0.5


def end_with_parent(parent: int, folder: Path) -> None:
    """Once `parent` is gone. folder: of the engine, which a caller that was killed will not clean."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    clean(folder)
    end()


def end() -> None:
    """The caller made this process leader of a session, so its group is this engine and nothing else."""
    sys.stderr.flush()
    os.killpg(os.getpgid(0), signal.SIGKILL)


def end_with_schedulers() -> None:
    """A thread, because the loop can hang then: a message to a dead scheduler waits for ever in ZeroMQ."""
    schedulers = {process.sentinel: process for process in multiprocessing.active_children()}
    died = schedulers[multiprocessing.connection.wait(list(schedulers))[0]]  # type: ignore[index]
    died.join(1.0)
    print(f"SchedulerError: the process {died.pid} ended with exit code {died.exitcode}", file=sys.stderr)
    end()
