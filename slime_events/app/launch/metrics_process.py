"""`metrics_written`: run `slime-events metrics --follow` in a process for each logger that a run's settings name.

The process only reads the log. The run neither waits for a logger nor fails with it. A process that fails is started
again.
"""

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from schemas.errors import SlimeEventsError
from slime_events.app.loggers.open_loggers import logger_flags, missing
from slime_events.core.child.process import kill_tree
from slime_events.core.config.metrics import MetricsSettings
from slime_events.core.run.own_python import own_command, own_path
from slime_events.core.run.process_environment import NICE_BACKGROUND, yield_session
from slime_events.core.run.run_folder import RunFolder
from storage.cancellation import end_all

END_S, FAILED_END_S = 20.0, 5.0
"""Seconds that the loggers have after a finished run, and after a failed run."""
SCRATCH = "slime-events-metrics-"
FIRST_PAUSE_S, MOST_PAUSE_S = 5.0, 600.0
"""Seconds before a failed process is started again; the pause doubles."""


@contextlib.asynccontextmanager
async def metrics_written(
    settings: MetricsSettings, folder: RunFolder, note: Callable[[str], None]
) -> AsyncIterator[None]:
    """Write metrics while inside, and for some seconds after. note: takes messages for the user."""
    over, flags = asyncio.Event(), [flag for flag in logger_flags(settings) if flag not in missing(settings)]
    writing = {flag: asyncio.create_task(_keep_writing(folder, flag, note, over)) for flag in flags}
    deadline = END_S
    try:
        yield
    except SlimeEventsError:
        deadline = FAILED_END_S
        raise
    except BaseException:  # an interrupt or a bug: the writer ends at once
        deadline = 0.0
        raise
    finally:
        over.set()
        if writing and deadline:
            await asyncio.wait(writing.values(), timeout=deadline)
        for flag in (flag for flag, task in writing.items() if not task.done()):
            note(f"{flag}: the run ended before all metrics were written; {_rest(folder, flag)}")
        await end_all(*writing.values())


async def _keep_writing(folder: RunFolder, flag: str, note: Callable[[str], None], over: asyncio.Event) -> None:
    pause, log = FIRST_PAUSE_S, folder.logs / f"metrics-{flag.removeprefix('--use-')}.log"
    command = own_command("slime_events.app.cli.main", "metrics", str(folder.path), "--follow", flag)
    while (code := await _run(command, log)) != 0:
        lines = log.read_text(errors="replace").splitlines() if code > 0 else []
        ended = f"exit code {code}" if code > 0 else f"ended by {signal.Signals(-code).name}"
        reason = f"{flag}: {lines[-1].removeprefix('error: ') if lines else ended} (full output in {log})"
        if over.is_set():
            note(f"{reason}; {_rest(folder, flag)}")
            return
        note(f"{reason}; the run continues, and the logger starts again in {pause:.0f} s")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await over.wait()
        pause = min(2 * pause, MOST_PAUSE_S)


async def _run(command: Sequence[str], log: Path) -> int:
    """Run a command and return its exit code.

    The process has its own session, so that neither a terminal's Ctrl-C nor a signal to the run reaches it. It has its
    own temporary folder, which is removed in any case: W&B leaves folders behind when it is killed.
    """
    with tempfile.TemporaryDirectory(prefix=SCRATCH, ignore_cleanup_errors=True) as scratch:
        return await _run_in(command, log, scratch)


async def _run_in(command: Sequence[str], log: Path, scratch: str) -> int:
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=os.environ | own_path() | {"TMPDIR": scratch},
        )
    try:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, NICE_BACKGROUND)
            yield_session(process.pid)
        return await process.wait()
    finally:
        if process.returncode is None:
            kill_tree(process.pid)
            await process.wait()


def _rest(folder: RunFolder, flag: str) -> str:
    return f"to write all of them: `slime-events metrics {folder.path} {flag}`"
