"""Runs with known timings: simulated ones, whose models a test chooses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from slime_events.analysis.what_if.answers import Answer, AnsweredGroup, Pools
from slime_events.analysis.what_if.delays import Delays
from slime_events.analysis.what_if.engine_speed import EngineSpeed
from slime_events.analysis.what_if.grader_speed import GraderSpeed
from slime_events.analysis.what_if.measurements import Measurements
from slime_events.analysis.what_if.trainer_speed import TrainerSpeed
from slime_events.core.config.settings import TrainSettings
from tests import made

NOTHING = Delays()


def speed(**fields: Any) -> EngineSpeed:
    """Return engines that need 0.1 s for a token, however many rollouts run."""
    plain = {"per_rollout": 0.0, "per_prompt": 0.0, "per_token": 0.1, "per_running": 0.0, "most_running": 100}
    return EngineSpeed(**(plain | fields))


def trainer(**fields: Any) -> TrainerSpeed:
    """Return a trainer that needs 1 s for a step."""
    plain = {"per_step": 1.0, "per_token": 0.0, "per_generating": 0.0, "moving_only": False, "error": 0.0}
    return TrainerSpeed(**(plain | {"fewest_tokens": 0, "most_tokens": 1000} | fields))


def settings(**rollout: Any) -> TrainSettings:
    """Return settings of two groups of one sample per step."""
    plain = {"num_rollout": 8, "rollout_batch_size": 2, "n_samples_per_prompt": 1}
    return made.settings(rollout=plain | rollout, data={"prompt_data": "f"})


def group(*lengths: int, prompt: int = 5, rewards: Sequence[float] = (), kept: bool = True, **fields: Any) -> Any:
    """Return an answered group with a sample of each length."""
    plain: dict[str, Any] = {"tools": 0.0, "grading": None}
    values = rewards or [float(index % 2) for index in range(len(lengths))]
    answers = tuple(
        Answer(**(plain | {"length": length, "generated": length, "reward": reward} | fields))
        for length, reward in zip(lengths, values, strict=True)
    )
    return AnsweredGroup(prompt=prompt, answers=answers, kept=kept)


GRADER = GraderSpeed(processes=1, gradings=1, busiest=1.0)


def measurements(training: Pools, of: TrainSettings | None = None, steps: int = 8, **fields: Any) -> Measurements:
    """Return what was measured of a run. By default nothing takes time but tokens and steps."""
    of = of or settings()
    plain: dict[str, Any] = {"engines": speed(), "trainer": trainer(), "delays": NOTHING, "graders": GRADER}
    return Measurements(settings=of, steps=steps, training=training, evaluations={}, **(plain | fields))


def changed(base: TrainSettings, **rollout: Any) -> TrainSettings:
    """Return settings with another rollout part."""
    return replace(base, rollout=replace(base.rollout, **rollout))
