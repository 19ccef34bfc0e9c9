"""Jobs of a pool or a worker, as the dispatcher makes them."""

from __future__ import annotations

from collections.abc import Sequence

from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.rewards.choice import choose
from slime_events.plugins.rewards.messages import Job
from slime_events.plugins.rewards.outcome import Outcome
from slime_events.plugins.rewards.pool import WorkerPool
from slime_events.plugins.sample import Sample


def job_of(settings: RewardSettings, *samples: Sample, group: bool = False, evaluation: bool = False) -> Job:
    return Job(list(samples), choose(settings, samples[0]), group, evaluation)


async def grade(pool: WorkerPool, samples: Sequence[Sample], *, evaluation: bool = False) -> list[Outcome]:
    """Grade each sample by itself in a pool."""
    return await pool.grade([job_of(pool.settings, sample, evaluation=evaluation) for sample in samples])


async def grade_group(pool: WorkerPool, samples: Sequence[Sample]) -> list[Outcome]:
    return await pool.grade([job_of(pool.settings, *samples, group=True)])
