"""CISPO (MiniMax-M1, 2025, arXiv 2506.13585): GRPO's advantage; the clipped ratio weights the gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from slime_events.algorithms.estimators.estimator import Estimator, PolicyLoss, clip_range
from slime_events.core.config.algorithm import AlgorithmSettings

if TYPE_CHECKING:
    from torch import Tensor

    from slime_events.algorithms.segments import Segments


@dataclass(frozen=True, slots=True)
class Cispo(Estimator):
    """loss = -stopgrad(clip(ratio, 1 - eps_clip, 1 + eps_clip_high)) * A * log_prob per token, and no dual clip."""

    has_dual_clip: ClassVar[bool] = False

    def loss(
        self, log_ratio: Tensor, log_probs: Tensor, advantages: Tensor, segments: Segments, settings: AlgorithmSettings
    ) -> PolicyLoss:
        return PolicyLoss(*cispo_loss(log_ratio, log_probs, advantages, *clip_range(settings)), log_ratio)


def cispo_loss(
    ppo_kl: Tensor, log_probs: Tensor, advantages: Tensor, eps_clip: float, eps_clip_high: float
) -> tuple[Tensor, Tensor]:
    """Return the loss and the clip indicator (0.0 / 1.0) per token, [tokens] each.

    loss = -stopgrad(clip(ratio)) * A * log_prob with ratio = exp(-ppo_kl). The gradient flows through `log_probs` only.
    """
    ratio = (-ppo_kl.detach()).exp()
    weight = ratio.clamp(1 - eps_clip, 1 + eps_clip_high)
    return -weight * advantages * log_probs, (weight != ratio).float()
