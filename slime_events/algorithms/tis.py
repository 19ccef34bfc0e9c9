"""The gap between engine and trainer, corrected: truncated importance sampling (Yao et al., 2025), IcePop (2025)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
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


def icepop(train_log_probs: Tensor, rollout_log_probs: Tensor, low: float, high: float) -> Correction:
    """Weight = ratio inside [low, high] and 0 outside: a token with too large a gap is left out."""
    ratio = (train_log_probs - rollout_log_probs).detach().exp()
    weight = torch.where((ratio >= low) & (ratio <= high), ratio, 0.0)
    return Correction(weight, (weight != ratio).float(), ratio)
