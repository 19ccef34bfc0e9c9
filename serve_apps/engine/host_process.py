"""The host process as its caller sees it: started, ended, and what its log says last."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from schemas.errors import DeadlineExceeded
from serve_apps.engine.arguments import EngineLaunch

STOP_S = 10.0

_ERROR_LINE = re.compile(r"^[\w.]*(Error|Exception|Interrupt)\b.*", re.MULTILINE)


def spawn(launch: EngineLaunch, folder: Path, socket_fd: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the host, leader of a session of its own.

    Not by asyncio: its child watchers mind the thread that a loop runs in, and a Serve replica's is any.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "serve_apps.engine.host", str(socket_fd), str(folder)],
        env=os.environ | launch.environment | {"TMPDIR": str(folder)},
        pass_fds=(socket_fd,),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


async def end(host: subprocess.Popen[bytes], schedulers: Sequence[int]) -> None:
    """Kill the host's session and wait for the end of it and of its schedulers. Raises DeadlineExceeded."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(host.pid, signal.SIGKILL)
    try:
        async with asyncio.timeout(STOP_S):
            # A process has no event to wait on.
            while host.poll() is None or any(map(runs, schedulers)):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise DeadlineExceeded(f"SGLang's processes did not end within {STOP_S:g} s of SIGKILL") from None


def log_end(log: IO[bytes]) -> str:
    """The last 64 KiB of a log."""
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - 65536))
    return log.read().decode(errors="replace")


def reason_in_log(text: str) -> str:
    """The last line of a log that names an exception, or nothing."""
    found = list(_ERROR_LINE.finditer(text))
    return found[-1].group().strip() if found else ""


def runs(pid: int) -> bool:
    """Whether the process is there and not a zombie that waits for init."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
