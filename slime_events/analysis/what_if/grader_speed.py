"""`GraderSpeed`: how many gradings the graders of a run make at once, and how long a sample waits for one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, NamedTuple, Self

import numpy as np

from schemas.doc import doc
from slime_events.analysis.what_if.intervals import Load
from slime_events.analysis.what_if.timed_rollouts import NANO, grading
from slime_events.model import Run

PARALLEL = 1.15
"""Gradings at once for each process from which a process makes several at once."""
BUSY = 0.7
"""The same below which the processes were not all busy."""


class Graded(NamedTuple):
    """A grading. Results of one batch have the same end, so their times overlap even if they were made in turn."""

    completed: Annotated[float, doc("end of the rollout [s, UTC]")]
    begin: Annotated[float, doc("end without the seconds of the grading [s, UTC]")]
    end: Annotated[float, doc("time of the reward [s, UTC]")]


class GraderSpeed(NamedTuple):
    """Gradings at once of a run's grader processes."""

    processes: Annotated[int, doc("number of grader processes")]
    gradings: Annotated[int, doc("most gradings at once of all processes; as many as processes if none makes several")]
    busiest: Annotated[float, doc("seconds of grading per second, in the busiest time with a sample to grade; 0: none")]

    @classmethod
    def of(cls, graded: Iterable[Graded], processes: int) -> Self:
        """Measure graders. Only seconds of work per second prove gradings at once."""
        times = sorted(graded)
        busiest = max((busy.work / busy.length for busy in busy_times(times) if busy.length > 0), default=0.0)
        overlap = Load((grading.begin, grading.end) for grading in times).most if busiest > PARALLEL * processes else 0
        return cls(processes, max(processes, overlap), busiest)

    def with_processes(self, processes: int) -> int:
        """Return the most gradings at once of this number of processes."""
        return max(processes, self.gradings * processes // self.processes)

    @property
    def is_known(self) -> bool:
        """Whether the processes were busy enough to tell how many gradings they make at once; or graded nothing."""
        return not self.busiest or self.busiest >= BUSY * self.processes


class Busy(NamedTuple):
    """A time in which at least one sample waits for its grading, or is graded."""

    begin: Annotated[float, doc("end of a rollout [s, UTC]")]
    end: Annotated[float, doc("time of the last reward [s, UTC]")]
    work: Annotated[float, doc("seconds of all gradings")]
    longest: Annotated[float, doc("seconds of the longest grading")]

    @property
    def length(self) -> float:
        return self.end - self.begin

    def wait(self, gradings: int) -> float:
        """Return how long a sample waits for a free grader [s]: what `gradings` at once do not explain."""
        return max(0.0, self.length - max(self.longest, self.work / gradings))


def busy_times(graded: Iterable[Graded]) -> list[Busy]:
    """Return the times in which graders had work, in order. graded: by `completed`."""
    times: list[Busy] = []
    for completed, begin, end in graded:
        work = end - begin
        if times and completed <= times[-1].end:
            last = times[-1]
            times[-1] = Busy(last.begin, max(last.end, end), last.work + work, max(last.longest, work))
        else:
            times.append(Busy(completed, end, work, work))
    return times


def wait_of(graded: Iterable[Graded], gradings: int) -> float:
    """Return the 10th percentile of the waits for a free grader [s]; 0 without gradings. gradings: most at once."""
    waits = [busy.wait(gradings) for busy in busy_times(sorted(graded))]
    return float(np.percentile(waits, 10)) if waits else 0.0


def gradings_of(run: Run) -> list[Graded]:
    """Return the gradings by grader processes."""
    return [
        Graded(sample.completed.at * NANO, *times)
        for sample in run.samples.values()
        if sample.completed is not None and (times := grading(sample)) is not None
    ]
