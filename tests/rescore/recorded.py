"""Simulated runs to rescore: graded by a coin over the response, with or without a filter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from schemas.rewards import RewardFailureKind
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.run_reader import OpenedRun
from slime_events.loop.conductor.cycle import Policy
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.filters.decide import make_group_filter
from slime_events.plugins.rewards.outcome import Outcome, RewardFailure
from slime_events.plugins.rewards.registry import built_in
from slime_events.plugins.sample import Sample
from tests import made
from tests.scripted_engine import Script
from tests.simulation.parts import InstantPool
from tests.simulation.simulation import Simulation, make_plan

NONZERO_STD = "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"
GROUPS, SAMPLES = 2, 3


def settings(**rollout: Any) -> TrainSettings:
    """Whole settings of a run that is graded by a coin."""
    return made.settings(
        rollout={
            "num_rollout": 5,
            "rollout_batch_size": GROUPS,
            "n_samples_per_prompt": SAMPLES,
            "rollout_max_response_len": 24,
            **rollout,
        },
        reward={"rm_type": "random"},
        engine={"hf_checkpoint": "base"},
        trainer={"hf_checkpoint": "base", "global_batch_size": GROUPS * SAMPLES, "num_steps_per_rollout": 1},
    )


def coin(sample: Sample) -> float:
    """Return the reward of `--rm-type random`."""
    return float(built_in("random").function(None, sample))


def coin_without(unlucky: str) -> Any:
    """Return the same, but no reward for the samples of one group."""

    def grade(sample: Sample) -> Outcome | float:
        if (sample.session_id or "").startswith(unlucky):
            return RewardFailure(kind=RewardFailureKind.NONE, message="the grader returned None")
        return coin(sample)

    return grade


async def record(folder: Path, run: TrainSettings, grade: Any = coin, **plan: Any) -> Simulation:
    """A finished simulation of such a run."""
    filtered = run.rollout.dynamic_sampling_filter_path
    judge = make_group_filter(run.rollout, ArgsView.of(run.rollout, run.reward, run.algorithm)) if filtered else None
    pool = InstantPool(grade)
    policy = Policy.of(run)._replace(plan=make_plan(**plan)) if run.reward.custom_reward_post_process_path else None
    more: dict[str, Any] = {"pool": pool, "judge": judge, "evaluations": None, "policy": policy}
    async with Simulation(folder, make_plan(**plan), **more) as sim:
        sim.start_engine(Script(chunk=24))
        await sim.finish()
    return sim


def opened(sim: Simulation, run: TrainSettings) -> OpenedRun:
    """The run as a command opens it."""
    return made.opened(sim.log, run, "sim")


def with_filter(run: TrainSettings, path: str | None) -> TrainSettings:
    """Return the same settings with another filter."""
    rollout = msgspec.structs.replace(run.rollout, dynamic_sampling_filter_path=path)
    return msgspec.structs.replace(run, rollout=rollout)
