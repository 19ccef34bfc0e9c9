"""`ESTIMATORS`: what `--advantage-estimator` names. A new one is a file here and a line below."""

from collections.abc import Iterator

from schemas.errors import InvalidValue
from slime_events.algorithms.estimators.cispo import Cispo
from slime_events.algorithms.estimators.estimator import Estimator
from slime_events.algorithms.estimators.grpo import Grpo
from slime_events.algorithms.estimators.gspo import Gspo
from slime_events.algorithms.estimators.reinforce_plus_plus import ReinforcePlusPlus
from slime_events.algorithms.estimators.reinforce_plus_plus_baseline import ReinforcePlusPlusBaseline
from slime_events.core.config.algorithm import AlgorithmSettings

ESTIMATORS: dict[str, Estimator] = {
    "grpo": Grpo(),
    "gspo": Gspo(),
    "cispo": Cispo(),
    "reinforce_plus_plus": ReinforcePlusPlus(),
    "reinforce_plus_plus_baseline": ReinforcePlusPlusBaseline(),
}


def estimator_of(settings: AlgorithmSettings) -> Estimator:
    """The estimator that the settings name. Raises InvalidValue."""
    name = settings.advantage_estimator
    if name not in ESTIMATORS:
        raise InvalidValue(f"advantage_estimator is {name!r}, and should be {' | '.join(ESTIMATORS)}.")
    return ESTIMATORS[name]


def impossible_estimator(settings: AlgorithmSettings) -> Iterator[str]:
    """A sentence for each setting that excludes the estimator."""
    name, estimator = settings.advantage_estimator, estimator_of(settings)
    if estimator.needs_whitening and not settings.normalize_advantages:
        yield f"advantage_estimator {name} needs normalize_advantages, as slime's does."
    if estimator.needs_values:
        yield f"advantage_estimator {name} needs a value model, which the trainer does not have yet."
