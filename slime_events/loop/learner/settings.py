"""The settings of a learner: its parent's, with what may be another's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from schemas.errors import InvalidValue
from slime_events.algorithms.reward_norm import normalize_rewards
from slime_events.core.config.settings import TrainSettings
from slime_events.loop.conductor.accept import Judge
from slime_events.loop.conductor.seal import Normalise
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.filters.decide import make_group_filter

OWN = {
    "run": None,
    "algorithm": None,
    "trainer": None,
    "rollout": ("num_rollout", "dynamic_sampling_filter_path", "rollout_deadline"),
    "engine": ("hf_checkpoint",),
}
"""Component to fields that a learner decides for itself, None for all of them. Everything else went into the rollouts,
which are there. The checkpoint is the same, but may lie elsewhere."""
NO_ENGINE = (
    "a learner generates nothing, so it has no engine to evaluate with. A branch has: `slime-events branch {run} "
    "--from VERSION --run NAME` begins with an evaluation of that version"
)
NO_DUMPS = "a learner neither writes dumps nor loads any. What it trains on is in the logs of its parent and its own"
NOT_OF_A_LEARNER = {"evaluation": NO_ENGINE, "debug": NO_DUMPS}
"""Component to why a learner cannot decide on it."""
TRAINS = ("algorithm", "trainer")
IDLE = ("hf_checkpoint", "save", "save_interval", "keep_weights", "update_weights_interval", "global_batch_size",
        "distributed_timeout_minutes")  # fmt: skip
"""Fields of the trainer that do not enter into the weights."""


def learner_settings(parent: TrainSettings, asked: TrainSettings, *, steps: int) -> TrainSettings:
    """What a learner of `parent` runs with. asked: the parent's settings under the flags. steps: it trains to.

    Its batches have as many optimizer steps as the parent's, each of as many rollouts as there are: the number of
    samples is not the parent's. Raises InvalidValue naming what a learner cannot decide.
    """
    check_own(parent, asked)
    trainer = asked.trainer
    own = parent.trainer.save != trainer.save
    trainer = msgspec.structs.replace(trainer, global_batch_size=None, save=trainer.save if own else None)
    rollout = msgspec.structs.replace(asked.rollout, num_rollout=steps)
    return msgspec.structs.replace(asked, trainer=trainer, rollout=rollout)


def check_own(parent: TrainSettings, asked: TrainSettings) -> None:
    """Raises InvalidValue for a setting that differs and went into the parent's rollouts, or is of no learner."""
    wrong: dict[str, list[str]] = {}
    for component, fields in _differences(parent, asked).items():
        own = OWN.get(component, ())
        wrong[component] = [] if own is None else [field for field in fields if field not in own]
    apart = {component: wrong.pop(component, []) for component in NOT_OF_A_LEARNER}
    if went_in := [field for fields in wrong.values() for field in fields]:
        raise InvalidValue(
            f"{_flags(went_in)}: went into the rollouts, which are there already. A learner decides on the algorithm, "
            "the trainer, the filter and the number of steps"
        )
    for component, unfit in apart.items():
        if unfit:
            raise InvalidValue(f"{_flags(unfit)}: {NOT_OF_A_LEARNER[component].format(run=asked.run.run)}")


def trains_otherwise(parent: TrainSettings, own: TrainSettings) -> bool:
    """Whether the same batches would make other weights."""
    differences = _differences(parent, own)
    return any(field not in IDLE for part in TRAINS for field in differences.get(part, ()))


def own_judge(parent: TrainSettings, own: TrainSettings) -> Judge | None:
    """The learner's filter where it has another than its parent."""
    if parent.rollout.dynamic_sampling_filter_path == own.rollout.dynamic_sampling_filter_path:
        return None
    return make_group_filter(own.rollout, ArgsView.of(own.rollout, own.reward, own.algorithm))


def own_normalise(own: TrainSettings) -> Normalise:
    """The learner's normalisation."""
    return lambda rewards, sizes: normalize_rewards(rewards, sizes, own.algorithm)


def least_rollouts(own: TrainSettings) -> int:
    """Rollouts that a step takes at least: one for each optimizer step on each copy of the model."""
    trainer = own.trainer
    of_one = trainer.tensor_model_parallel_size * trainer.pipeline_model_parallel_size * trainer.context_parallel_size
    return (trainer.num_steps_per_rollout or 1) * max(1, trainer.world_size // of_one)


def _flags(fields: Sequence[str]) -> str:
    return ", ".join("--" + field.replace("_", "-") for field in fields)


def _differences(one: TrainSettings, other: TrainSettings) -> dict[str, dict[str, Any]]:
    old, new = msgspec.to_builtins(one), msgspec.to_builtins(other)
    return {part: {f: value for f, value in new[part].items() if value != old[part].get(f)} for part in new}
