"""GRPO (Shao et al., 2024, arXiv 2402.03300): a sample's normalised reward is the advantage of each of its tokens."""

from dataclasses import dataclass

from slime_events.algorithms.estimators.estimator import Estimator


@dataclass(frozen=True, slots=True)
class Grpo(Estimator):
    """A = (r - mean(r)) / (std(r) + 1e-6) over the group, with unbiased std; PPO's clipped loss.

    Without the std it is Dr.GRPO's advantage (Liu et al., 2025, arXiv 2503.20783). `kl_coef` has no effect.
    """
