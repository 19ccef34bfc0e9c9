"""`ESTIMATORS`: the choices of `--advantage-estimator`. A new estimator is a file here and a line below."""

from collections.abc import Iterator

from schemas.errors import InvalidValue
from slime_events.algorithms.estimators.cispo import Cispo
from slime_events.algorithms.estimators.estimator import Estimator
from slime_events.algorithms.estimators.grpo import Grpo
from slime_events.algorithms.estimators.gspo import Gspo
from slime_events.algorithms.estimators.ppo import Ppo
from slime_events.algorithms.estimators.reinforce_plus_plus import ReinforcePlusPlus
from slime_events.algorithms.estimators.reinforce_plus_plus_baseline import ReinforcePlusPlusBaseline
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.settings import TrainSettings

ESTIMATORS: dict[str, Estimator] = {
    "grpo": Grpo(),
    "gspo": Gspo(),
    "cispo": Cispo(),
    "reinforce_plus_plus": ReinforcePlusPlus(),
    "reinforce_plus_plus_baseline": ReinforcePlusPlusBaseline(),
    "ppo": Ppo(),
}


def estimator_of(settings: AlgorithmSettings) -> Estimator:
    """Return the estimator that the settings name. Raises InvalidValue."""
    name = settings.advantage_estimator
    if name not in ESTIMATORS:
        raise InvalidValue(f"advantage_estimator is {name!r}, and should be {' | '.join(ESTIMATORS)}.")
    return ESTIMATORS[name]


def impossible_estimator(settings: TrainSettings) -> Iterator[str]:
    """Yield a sentence for each setting that conflicts with the estimator."""
    algorithm = settings.algorithm
    name, estimator = algorithm.advantage_estimator, estimator_of(algorithm)
    if estimator.needs_whitening and not algorithm.normalize_advantages:
        yield f"advantage_estimator {name} needs normalize_advantages, as slime's does."
    if estimator.needs_values:
        yield from _impossible_critic(settings)


def _impossible_critic(settings: TrainSettings) -> Iterator[str]:
    name, trainer = settings.algorithm.advantage_estimator, settings.trainer
    if settings.algorithm.loss_type == "sft_loss" or not settings.algorithm.compute_advantages_and_returns:
        yield f"advantage_estimator {name} needs advantages and returns: its critic learns from nothing else."
    for part in ("num_nodes", "num_gpus_per_node"):
        own, actors = getattr(trainer, f"critic_{part}"), getattr(trainer, f"actor_{part}")
        if own not in (None, actors):
            yield (
                f"critic_{part} {own} is not actor_{part} {actors}: the critic shares the actor's ranks, so that one "
                "commit holds both. Leave it out."
            )
    if trainer.critic_lr is not None and trainer.min_lr > trainer.critic_lr:
        yield f"min_lr {trainer.min_lr} is above critic_lr {trainer.critic_lr}: the floor would be over the start."
    warmup, decay = trainer.critic_lr_warmup_iters, trainer.lr_decay_iters
    if decay is not None and warmup >= decay:
        yield f"critic_lr_warmup_iters {warmup} must be below lr_decay_iters {decay}."
