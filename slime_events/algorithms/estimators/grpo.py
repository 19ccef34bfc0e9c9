"""GRPO (Shao et al., 2024): the normalised reward of a sample is the advantage of each of its tokens."""

from dataclasses import dataclass

from slime_events.algorithms.estimators.estimator import Estimator


@dataclass(frozen=True, slots=True)
class Grpo(Estimator):
    """Takes every default. A KL in the reward does not enter its advantage, whatever `kl_coef` is."""
