"""CISPO (MiniMax-M1, 2025): the clipped ratio weights the token's gradient instead of cutting it off."""

from __future__ import annotations

from torch import Tensor


def cispo_loss(
    ppo_kl: Tensor, log_probs: Tensor, advantages: Tensor, eps_clip: float, eps_clip_high: float
) -> tuple[Tensor, Tensor]:
    """Loss and clip indicator (0.0 / 1.0) per token: -stopgrad(clip(ratio)) * A * log_prob, ratio = exp(-ppo_kl).

    Gradient flows through `log_probs` alone.
    """
    ratio = (-ppo_kl.detach()).exp()
    weight = ratio.clamp(1 - eps_clip, 1 + eps_clip_high)
    return -weight * advantages * log_probs, (weight != ratio).float()
