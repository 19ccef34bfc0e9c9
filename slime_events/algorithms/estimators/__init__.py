"""`ESTIMATORS`: the choices of `--advantage-estimator`. A new estimator is a file here and a line below."""

from schemas.errors import InvalidValue
from slime_events.algorithms.estimators.cispo import Cispo
from slime_events.algorithms.estimators.estimator import Estimator
from slime_events.algorithms.estimators.grpo import Grpo
from slime_events.algorithms.estimators.gspo import Gspo
from slime_events.algorithms.estimators.ppo import Ppo
from slime_events.algorithms.estimators.reinforce_plus_plus import ReinforcePlusPlus
from slime_events.algorithms.estimators.reinforce_plus_plus_baseline import ReinforcePlusPlusBaseline
from slime_events.core.config.algorithm import AlgorithmSettings

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


def capabilities() -> dict[str, tuple[str, ...]]:
    """Return the names of the estimators that declare each capability, for the rules at the fields of settings.

    A capability is a class variable of `Estimator`.
    """
    return {
        f"advantage_estimator:{capability}": tuple(
            name for name, estimator in ESTIMATORS.items() if getattr(estimator, capability)
        )
        for capability in Estimator.__annotations__
    }
