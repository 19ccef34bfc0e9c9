"""`Grader`: gives every completed sample its reward, or the reason why it has none.

    rollout.completed -> process pool with a time limit -> reward.assigned | reward.failed

A slow sample holds nobody but its own group: each group's new samples are graded and appended on their own.
"""

from __future__ import annotations

import asyncio
import logging

from schemas.event import Event
from schemas.rewards import RewardAssigned, RewardFailed
from slime_events.rewards.outcome import Graded, Outcome
from slime_events.rewards.pool import GraderPool
from slime_events.ungraded import Ungraded
from slime_events.worker import Worker, ends_run
from storage.follow import Follower
from storage.group_commit import GroupCommit
from storage.log import Append, Recorded, once

log = logging.getLogger(__name__)


class Grader:
    """The shell around the pool."""

    def __init__(self, worker: Worker, pool: GraderPool, commit: GroupCommit, *, whole_groups: bool) -> None:
        self._worker, self._pool, self._commit = worker, pool, commit
        self._ungraded = Ungraded(whole_groups=whole_groups)
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = False

    async def run(self) -> None:
        """Grade until the run is over."""
        async with Follower(self._worker.log) as follower:
            while not self._ended:
                for recorded in await follower.next(wait_s=1.0):
                    self._ungraded.apply(recorded)
                    self._ended |= ends_run(recorded, follower)
                if follower.caught_up:
                    self._start()
                self._reap()

    def _start(self) -> None:
        for group, completed in self._ungraded.take():
            task = asyncio.create_task(self._grade(group, completed), name=f"grade-{group}")
            self._tasks.add(task)

    def _reap(self) -> None:
        for task in [task for task in self._tasks if task.done()]:
            self._tasks.discard(task)
            task.result()

    async def _grade(self, group: str, completed: dict[str, Recorded]) -> None:
        samples = self._ungraded.samples(group, completed)
        grade = self._pool.grade_group if len(completed) > 1 else self._pool.grade
        outcomes = await grade(samples, evaluation=self._ungraded.is_evaluation(group))
        appends = [
            self._append(event_of(sample, group, outcome), recorded)
            for (sample, recorded), outcome in zip(completed.items(), outcomes, strict=True)
        ]
        await self._commit.append(appends)

    def _append(self, event: Event, completed: Recorded) -> Append:
        return once(self._worker.enclose(event, cause=completed.envelope.id))


def event_of(sample: str, group: str, outcome: Outcome) -> Event:
    """The outcome as an event."""
    if isinstance(outcome, Graded):
        return RewardAssigned(
            sample=sample,
            group=group,
            value=outcome.value,
            grader=outcome.grader,
            grader_digest=outcome.grader_digest,
            detail=outcome.detail or None,
            seconds=outcome.seconds,
        )
    return RewardFailed(
        sample=sample,
        group=group,
        kind=outcome.kind,
        message=outcome.message,
        grader=outcome.grader,
        grader_digest=outcome.grader_digest,
        seconds=outcome.seconds,
    )
