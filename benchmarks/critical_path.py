"""Split the wall time of a run's steps into kinds of work, from its log alone.

A step lasts from one `step.committed` to the next (by their `at`, which is set just before the append). These intervals
are work:

    generate   for every rollout, from the time when its engine had both the request and its weights
               (max of `rollout.completed.at - timings.generating` and its `weights.activated.at`) to `completed.at`
    grade      `reward.assigned.at - seconds` to `at`
    train      `step.committed.at - (seconds of batch, train, weights)` to `at`
    activate   `weights.activated.at - seconds` to `at`: loading the files after their check

Time outside all intervals is that of the log and the control plane: every append (fsync included) and its delivery,
from commit to the engine, from the last rollout to its reward if the grader assigns it, the decision, the seal, and the
way to the trainer. At staleness 1 and above, control that overlaps with work costs no wall time and does not count.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

from schemas.doc import doc
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted
from schemas.steps import StepCommitted
from schemas.weights import WeightsActivated
from storage.log import Recorded

Interval = tuple[int, int]
"""UTC nanoseconds, [start, end)."""


class Work(enum.StrEnum):
    """Kinds of work in a step."""

    GENERATE = "generate"
    GRADE = "grade"
    TRAIN = "train"
    ACTIVATE = "activate"


@dataclass(frozen=True, slots=True)
class StepTime:
    """Times of a step, in seconds."""

    step: int
    wall: float
    work: Annotated[dict[Work, float], doc("Time covered by each kind of work; kinds may overlap")]
    control: Annotated[float, doc("Time that no work covers")]


def step_times(log: Iterable[Recorded]) -> list[StepTime]:
    """Return the times of every step except the first."""
    commits: list[tuple[int, int]] = []
    work: dict[Work, list[Interval]] = {kind: [] for kind in Work}
    activated: dict[tuple[str, int], int] = {}
    for recorded in log:
        event, at = recorded.envelope.event, recorded.envelope.at
        if isinstance(event, StepCommitted):
            commits.append((event.step, at))
            work[Work.TRAIN].append((at - _ns(sum(event.seconds.values())), at))
        elif isinstance(event, WeightsActivated):
            activated[event.engine, event.version] = at
            work[Work.ACTIVATE].append((at - _ns(event.seconds), at))
        elif isinstance(event, RolloutCompleted):
            ready = activated.get((event.engine, event.spans[0].version), 0) if event.spans else 0
            work[Work.GENERATE].append((max(ready, at - _ns(event.timings.generating)), at))
        elif isinstance(event, RewardAssigned):
            work[Work.GRADE].append((at - _ns(event.seconds), at))
    return _split(commits, work)


def _split(commits: Sequence[tuple[int, int]], work: dict[Work, list[Interval]]) -> list[StepTime]:
    merged = {kind: merge(intervals) for kind, intervals in work.items()}
    everything = merge([interval for intervals in work.values() for interval in intervals])
    return [
        StepTime(
            step=step,
            wall=(end - start) / 1e9,
            work={kind: covered(intervals, start, end) / 1e9 for kind, intervals in merged.items()},
            control=(end - start - covered(everything, start, end)) / 1e9,
        )
        for (_, start), (step, end) in pairwise(commits)
    ]


def merge(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union of intervals, as disjoint intervals in order."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def covered(intervals: Iterable[Interval], start: int, end: int) -> int:
    """Return the nanoseconds of [start, end) that disjoint intervals cover."""
    return sum(max(0, min(end, stop) - max(start, begin)) for begin, stop in intervals)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
