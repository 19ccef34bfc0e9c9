"""Test the pool's queue, without its processes: the next job, retries, messages about broken workers."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.errors import PlugPointError
from schemas.rewards import RewardFailureKind as Kind
from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.rewards import messages
from slime_events.plugins.rewards import pool as pool_module
from slime_events.plugins.rewards.outcome import RewardFailure
from slime_events.plugins.rewards.pool import PendingJob, WorkerPool
from slime_events.plugins.sample import Sample
from tests.rewards.jobs import grade

Died = Kind.WORKER_DIED


def queued(jobs: int, workers: int = 1) -> tuple[WorkerPool, list[PendingJob]]:
    pool = WorkerPool(RewardSettings(rm_type="exact", rm_workers=workers))
    jobs_ = [PendingJob(b"", 1) for _ in range(jobs)]
    pool._queue.extend(jobs_)
    pool._tasks = [None] * workers  # type: ignore[list-item]
    return pool, jobs_


async def test_each_process_gets_its_share() -> None:
    pool, jobs = queued(5, workers=2)
    assert [await pool._next_batch() for _ in range(3)] == [jobs[:3], jobs[3:4], jobs[4:]]
    pool, jobs = queued(2 * pool_module.BATCH)
    assert len(await pool._next_batch()) == pool_module.BATCH
    pool._loaded[pool.own] = messages.Loaded(pool.own, concurrent=True)
    pool._queue.extend(jobs)
    assert len(await pool._next_batch()) == 3 * pool_module.BATCH


async def test_what_a_death_left_goes_again_first_and_the_blamed_alone() -> None:
    pool, (later,) = queued(1)
    done, blamed, after = (PendingJob(b"", 1) for _ in range(3))
    done.resolve([])
    pool._settle([done, blamed, after], 1, Died, "gone", 0.0)
    assert list(pool._queue) == [blamed, after, later]
    assert [job.alone for job in pool._queue] == [True, False, False]
    assert await pool._next_batch() == [blamed]
    pool._settle([blamed], 0, Died, "gone again", 0.5)
    (outcome,) = await blamed.future
    assert isinstance(outcome, RewardFailure)
    assert (outcome.kind, outcome.message, outcome.seconds) == (Died, "gone again", 0.5)
    assert list(pool._queue) == [after, later]


@pytest.mark.parametrize("current", [None, 0])
async def test_where_nobody_is_to_blame_each_goes_again_alone(current: int | None) -> None:
    """The process died between two jobs, or on one that it had answered already."""
    pool, _ = queued(0)
    done, *others = (PendingJob(b"", 1) for _ in range(3))
    done.resolve([])
    pool._settle([done, *others], current, Died, "gone", 0.0)
    assert list(pool._queue) == others
    assert all(job.alone and not job.deaths for job in others)


async def test_a_time_limit_fails_at_once_who_is_to_blame() -> None:
    pool, _ = queued(0)
    first, second = (PendingJob(b"", 1) for _ in range(2))
    pool._settle([first, second], 0, Kind.TIMEOUT, "too long", 60.0)
    assert first.future.done()
    assert list(pool._queue) == [second]


async def test_all_who_wait_are_told_that_the_pool_broke() -> None:
    pool, waiting = queued(2)
    batch = [PendingJob(b"", 1)]
    pool._break(PlugPointError("no grader"), batch)
    for job in (*batch, *waiting):
        with pytest.raises(PlugPointError):
            await job.future
    with pytest.raises(PlugPointError):
        await grade(pool, [Sample()])


async def test_a_pool_that_cannot_start_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Process] = []

    class Process:
        def __init__(self) -> None:
            self.stopped = False

        @classmethod
        async def start(cls, *_: Any) -> Process:
            if started:
                raise PlugPointError("no grader")
            started.append(cls())
            return started[0]

        async def stop(self, deadline: float) -> None:
            self.stopped = True

    monkeypatch.setattr(pool_module, "WorkerProcess", Process)
    with pytest.raises(PlugPointError):
        await WorkerPool(RewardSettings(rm_type="exact", rm_workers=2)).start()
    assert [process.stopped for process in started] == [True]
