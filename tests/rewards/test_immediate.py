"""Check that grading in this process gives the outcome of a process of the pool."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.rewards.choice import IMMEDIATE
from slime_events.plugins.rewards.dispatcher import Dispatcher
from slime_events.plugins.rewards.outcome import Graded, Outcome
from slime_events.plugins.rewards.pool import WorkerPool
from slime_events.plugins.rewards.registry import GRADERS
from slime_events.plugins.sample import Sample
from tests.rewards.jobs import grade

SAMPLES = [
    Sample(index=0, response="4<|im_end|>", label="4"),
    Sample(index=1, response="5", label="4"),
    Sample(index=2, response="4", label=" 4", metadata={"difficulty": 1}),
    Sample(index=3, response=r"\boxed{4}", label=None),
    Sample(index=4, response="", label="", metadata={"rm_type": "random"}),
    Sample(index=5, response="4", label="<|im_end|>", tokens=[1, 2, 3]),
]


def _timeless(outcomes: list[Outcome]) -> list[Outcome]:
    return [replace(outcome, seconds=0.0) for outcome in outcomes]


@pytest.mark.parametrize("settings", [{"rm_type": "exact"}, {"rm_type": "random", "reward_key": "no_dict"}])
async def test_it_comes_out_as_in_the_pool(settings: dict[str, str]) -> None:
    settings_ = RewardSettings(rm_workers=1, **settings)  # type: ignore[arg-type]
    async with WorkerPool(settings_) as pool, Dispatcher(settings_) as graders:
        for evaluation in (False, True):
            expected = await grade(pool, SAMPLES, evaluation=evaluation)
            outcomes = await graders.grade(SAMPLES, evaluation=evaluation)
            assert _timeless(outcomes) == _timeless(expected)
            assert _timeless(await graders.grade_group(SAMPLES, evaluation=evaluation)) == _timeless(expected)
        assert graders._pool.pids == []


async def test_a_sample_that_names_another_grader_gets_a_process() -> None:
    async with Dispatcher(RewardSettings(rm_type="exact", rm_workers=1)) as graders:
        named = Sample(response=r"\boxed{3}", label="3", metadata={"rm_type": "boxed_exact"})
        outcomes = await graders.grade([*SAMPLES[:2], named])
        (pid,) = graders._pool.pids
        assert await graders.grade([named]) != []
        assert graders._pool.pids == [pid], "it is the same one the next time"
    assert [outcome.value for outcome in outcomes if isinstance(outcome, Graded)] == [1.0, 0.0, 1.0]
    assert graders.inline(Sample(custom_rm_path="own.py:grade"), evaluation=False) is None


async def test_of_its_own_it_starts_the_pool_for_what_may_hang() -> None:
    async with Dispatcher(RewardSettings(rm_type="f1", rm_workers=1)) as graders:
        assert len(graders._pool.pids) == 1
    assert GRADERS.keys() > IMMEDIATE
