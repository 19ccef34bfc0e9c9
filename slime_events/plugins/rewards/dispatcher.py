"""`Dispatcher`: sends each sample to the place where it is graded, which `choose` decides.

sample -> choose -> this process | pool -> worker process | judge | producer -> outcome
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.rewards import RewardFailureKind
from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.rewards.choice import OUTSIDE, Place, choose, reward_key
from slime_events.plugins.rewards.messages import Job, Setup
from slime_events.plugins.rewards.outcome import Outcome, failure, signed
from slime_events.plugins.rewards.pool import WorkerPool
from slime_events.plugins.rewards.worker import Worker
from slime_events.plugins.sample import Sample

if TYPE_CHECKING:  # aiohttp is imported only for runs with a judge
    from slime_events.plugins.rewards.remote import RemoteJudge


class Dispatcher:
    """Grades the samples of a run. Takes the arguments of `WorkerPool`; use it as `async with`, except for `inline`.

    ready: a call that returns once the pool's functions can be called; the time limit of a grading begins then.
    The pool's processes start at once if they grade with the run's own function, else with the first sample that needs
    them.
    """

    def __init__(
        self,
        settings: RewardSettings,
        *,
        args: Mapping[str, Any] | None = None,
        log: Path | None = None,
        ready: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._settings, self._ready = settings, ready
        self._pool = WorkerPool(settings, args=args, log=log)
        self._inline = Worker(Setup(settings, {}, str(Path.cwd())), mark=lambda number: None)
        self._starting = asyncio.Lock()
        self._parts = contextlib.AsyncExitStack()
        self._pool_started = False
        self._judge: RemoteJudge | None = None

    async def __aenter__(self) -> Dispatcher:
        if self._settings.rm_url:
            from slime_events.plugins.rewards.remote import RemoteJudge

            judge = RemoteJudge(self._settings.rm_url, self._settings.rm_timeout)
            self._judge = await self._parts.enter_async_context(judge)
        if choose(self._settings, Sample()).place is Place.POOL:
            await self._start_pool()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._parts.aclose()

    async def grade(self, samples: Sequence[Sample], *, evaluation: bool = False) -> list[Outcome]:
        """Grade each sample by itself. Outcomes have the samples' order. An error in a grader is an outcome.

        With `evaluation`, --eval-reward-key applies. Raises only if grader processes can no longer be started.
        """
        jobs = self._jobs(samples, evaluation=evaluation)
        places = sorted({job.choice.place for job in jobs})
        graded = await asyncio.gather(
            *(self._grade_at(place, [job for job in jobs if job.choice.place is place]) for place in places)
        )
        outcomes = dict(zip(places, map(iter, graded), strict=True))
        return [next(outcomes[job.choice.place]) for job in jobs]

    async def grade_group(self, samples: Sequence[Sample], *, evaluation: bool = False) -> list[Outcome]:
        """Grade a group: as a whole by the user's function with --group-rm, else sample by sample."""
        if self._settings.group_rm and self._settings.custom_rm_path:
            job = Job(list(samples), choose(self._settings, samples[0]), group=True, evaluation=evaluation)
            return await self._grade_at(Place.POOL, [job])
        return await self.grade(samples, evaluation=evaluation)

    def inline(self, sample: Sample, *, evaluation: bool) -> Outcome | None:
        """Grade a sample at once in this process; None if its place is another."""
        (job,) = self._jobs([sample], evaluation=evaluation)
        return self._grade_inline([job])[0] if job.choice.place is Place.INLINE else None

    def _jobs(self, samples: Sequence[Sample], *, evaluation: bool) -> list[Job]:
        return [Job([sample], choose(self._settings, sample), evaluation=evaluation) for sample in samples]

    async def _grade_at(self, place: Place, jobs: Sequence[Job]) -> list[Outcome]:
        match place:
            case Place.INLINE:
                return self._grade_inline(jobs)
            case Place.POOL:
                pool = await self._start_pool()
                if self._ready is not None:
                    await self._ready()
                return await pool.grade(jobs)
            case Place.JUDGE:
                return list(await asyncio.gather(*map(self._ask_judge, jobs)))
            case Place.OUTSIDE:
                return [await self._not_sent()] * len(jobs)

    def _grade_inline(self, jobs: Sequence[Job]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        self._inline.grade(jobs, lambda done: outcomes.extend(done.outcomes))
        return outcomes

    async def _start_pool(self) -> WorkerPool:
        async with self._starting:
            if not self._pool_started:
                await self._parts.enter_async_context(self._pool)
                self._pool_started = True
        return self._pool

    async def _ask_judge(self, job: Job) -> Outcome:
        name = job.choice.name
        if self._judge is None:
            message = f"the sample's metadata names the grader {name}, but the run has no --rm-url"
            return signed(failure(RewardFailureKind.RAISED, message), name, "")
        return await self._judge.grade(name, job.samples[0], reward_key(self._settings, evaluation=job.evaluation))

    async def _not_sent(self) -> Outcome:
        """Return the failure of samples whose rewards no producer sends in time. An earlier reward overrides it."""
        seconds = self._settings.outside_reward_seconds
        await asyncio.sleep(seconds)
        message = f"no reward arrived within {seconds:.0f} s (--outside-reward-seconds)"
        return signed(failure(RewardFailureKind.TIMEOUT, message), OUTSIDE, "", seconds)
