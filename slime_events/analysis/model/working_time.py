"""`WorkingTime`: how long a run was on and how long it could work, by its log. A fold."""

from __future__ import annotations

from schemas.event import Event
from schemas.rollouts import RolloutCompleted, RolloutProgressed
from schemas.runs import RunFailed, RunResumed, RunStarted
from schemas.steps import StepClaimed, StepCommitted
from schemas.weights import WeightsActivated, WeightsPublished
from schemas.workers import WorkerJoined


class WorkingTime:
    """Times in nanoseconds, by the writers' clocks.

    on: from run.started or run.resumed to the last event of that life, over all lives: time without a launcher is left
    out. worked: the part of it in which somebody could generate and somebody could train; of a run that follows
    another, in which somebody could train. startup: of the newest life, until it could; None before. last: UTC.
    """

    def __init__(self) -> None:
        self.on = self.worked = self.lives = self.last = 0
        self.startup: int | None = None
        self._since = 0
        self._follows = self._generates = self._trains = False

    def apply(self, event: Event, at: int) -> None:
        """Take in the next event of the log."""
        if isinstance(event, RunStarted | RunResumed):
            self._begin(event, at)
            return
        passed = max(0, at - self.last) if self.lives else 0
        self.last += passed
        self.on += passed
        # Before a failure a run may have stood still up to its deadline, whether its launcher was there or not.
        if self.startup is not None and not isinstance(event, RunFailed):
            self.worked += passed
        self._generates |= isinstance(event, WeightsActivated | RolloutProgressed | RolloutCompleted)
        self._trains |= isinstance(event, WeightsPublished | StepClaimed | StepCommitted) or _is_trainer(event)
        if self._generates and self._trains and self.startup is None:
            self.startup = self.last - self._since

    def _begin(self, event: RunStarted | RunResumed, at: int) -> None:
        if isinstance(event, RunStarted):
            self._follows = event.branched is not None and event.branched.follows
        self._generates, self._trains, self.startup = self._follows, False, None
        self._since = self.last = at
        self.lives += 1


def _is_trainer(event: Event) -> bool:
    return isinstance(event, WorkerJoined) and event.role == "trainer"
