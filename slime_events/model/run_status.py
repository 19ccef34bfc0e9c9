"""`RunStatus`: the status of a run, from its log and from whether a launcher is running."""

import enum

from schemas.event import Event
from schemas.runs import FinishReason, RunFailed, RunFinished
from schemas.subjects import about
from storage.log import Readable


class RunStatus(enum.StrEnum):
    """Status of a run. UNENDED: an archive without the run's end, which cannot show whether the run is running."""

    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    KILLED = "killed"
    UNENDED = "unended"


MEANINGS = {
    RunStatus.RUNNING: "its launcher is running",
    RunStatus.FINISHED: "all steps are trained",
    RunStatus.INTERRUPTED: "stopped in order before its last step; continue it with `slime-events resume {run}`",
    RunStatus.FAILED: "once the cause is fixed, continue it with `slime-events resume {run}`",
    RunStatus.KILLED: "it has no launcher, and its log has no end; continue it with `slime-events resume {run}`",
    RunStatus.UNENDED: "the archive has no end of the run, and does not show whether the run is still running",
}
"""Explanation of each status; `{run}` is a placeholder."""


def status_of(last: Event | None, launched: bool | None) -> RunStatus:
    """Return a run's status.

    last: the newest of the run's own events. launched: whether a launcher is running; None if unknown.
    """
    if isinstance(last, RunFinished):
        return RunStatus.FINISHED if last.reason is FinishReason.ALL_STEPS else RunStatus.INTERRUPTED
    if isinstance(last, RunFailed):
        return RunStatus.FAILED
    if launched is None:
        return RunStatus.UNENDED
    return RunStatus.RUNNING if launched else RunStatus.KILLED


async def last_run_event(log: Readable) -> Event | None:
    """Return the newest of a run's own events."""
    last = await log.last(about(log.run, "run", "run"))
    return last.envelope.event if last else None
