"""Truncated importance sampling (Yao et al., 2025): corrects the gap between engine and trainer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Correction:
    """Per token, [tokens] each: the weight for the loss, 1.0 where it was bounded, the plain ratio trainer / engine."""

    weight: Tensor
    clipped: Tensor
    ratio: Tensor

    @property
    def distance(self) -> Tensor:
        """|ratio - 1| per token: how far engine and trainer are apart."""
        return (self.ratio - 1).abs()


def truncated(train_log_probs: Tensor, rollout_log_probs: Tensor, low: float, high: float) -> Correction:
    """Weight = ratio within [low, high]; ratio = exp(train - rollout), both of the policy that sampled."""
    ratio = (train_log_probs - rollout_log_probs).detach().exp()
    weight = ratio.clamp(low, high)
    return Correction(weight, (weight != ratio).float(), ratio)
