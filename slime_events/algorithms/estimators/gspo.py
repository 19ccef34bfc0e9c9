"""GSPO (Zheng et al., 2025, arXiv 2507.18071): GRPO's advantage with one importance ratio per sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from slime_events.algorithms.estimators.estimator import Estimator, PolicyLoss
from slime_events.core.config.algorithm import AlgorithmSettings

if TYPE_CHECKING:
    from torch import Tensor

    from slime_events.algorithms.segments import Segments


@dataclass(frozen=True, slots=True)
class Gspo(Estimator):
    """PPO's clipped loss with ratio = exp(mean over the sample's trained tokens of new - old log-probs)."""

    def loss(
        self, log_ratio: Tensor, log_probs: Tensor, advantages: Tensor, segments: Segments, settings: AlgorithmSettings
    ) -> PolicyLoss:
        return Estimator.loss(self, gspo_kl(log_ratio, segments), log_probs, advantages, segments, settings)


def gspo_kl(log_ratio: Tensor, segments: Segments) -> Tensor:
    """Return each sample's masked mean of old - new log-probs, repeated for its tokens; [tokens] -> [tokens]."""
    return segments.expand(segments.masked_mean(log_ratio))
