"""`RunStatus`: the status of a run, from its log and from whether a launcher has it now."""

import enum

from schemas.errors import RunIsOn
from schemas.event import Event
from schemas.runs import FinishReason, RunFailed, RunFinished
from schemas.subjects import about
from slime_events.app.launch.launcher_presence import check_absent
from slime_events.app.launch.run_lock import is_held
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.run.run_reader import OpenedRun
from storage.jetstream.log import JetStreamLog
from storage.log import Readable
from storage.open_log import URL_FILE


class RunStatus(enum.StrEnum):
    """UNENDED: an archive whose last event is no end. It cannot say whether the run is on."""

    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    KILLED = "killed"
    UNENDED = "unended"


MEANINGS = {
    RunStatus.RUNNING: "a launcher is on",
    RunStatus.FINISHED: "all steps",
    RunStatus.INTERRUPTED: "stopped in order before its last step; `slime-events resume {run}` goes on",
    RunStatus.FAILED: "`slime-events resume {run}` goes on once the cause is gone",
    RunStatus.KILLED: "no launcher is on, and its log has no end; `slime-events resume {run}` goes on",
    RunStatus.UNENDED: "the archive ends before the run does; it cannot say whether the run is on now",
}
"""Each in words; `{run}` is to be filled in."""


def status_of(last: Event | None, launched: bool | None) -> RunStatus:
    """last: the newest of a run's own events. launched: whether a launcher is on; None where that cannot be known."""
    if isinstance(last, RunFinished):
        return RunStatus.FINISHED if last.reason is FinishReason.ALL_STEPS else RunStatus.INTERRUPTED
    if isinstance(last, RunFailed):
        return RunStatus.FAILED
    if launched is None:
        return RunStatus.UNENDED
    return RunStatus.RUNNING if launched else RunStatus.KILLED


async def read_status(opened: OpenedRun) -> RunStatus:
    """Of an opened run, now. Raises StorageError."""
    launched = None if opened.folder is None else await is_launched(opened.folder, opened.log)
    return status_of(await last_run_event(opened.log), launched)


async def last_run_event(log: Readable) -> Event | None:
    """The newest of a run's own events."""
    last = await log.last(about(log.run, "run", "run"))
    return last.envelope.event if last else None


async def is_launched(folder: RunFolder, log: Readable) -> bool:
    """Whether a launcher is on: on this machine by the lock of the folder, on another by an answer over NATS."""
    if is_held(folder):
        return True
    if not (folder.path / URL_FILE).is_file() or not isinstance(log, JetStreamLog):
        return False
    try:
        await check_absent(log)
    except RunIsOn:
        return True
    return False
