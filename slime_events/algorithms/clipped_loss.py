"""PPO's clipped loss (Schulman et al., 2017, arXiv 1707.06347): the policy term that estimators share.

The two bounds may differ (DAPO, 2025, arXiv 2503.14476); the dual clip is from Ye et al. (2019, arXiv 1912.09729).
"""

import torch
from torch import Tensor


def clipped_policy_loss(
    ppo_kl: Tensor, advantages: Tensor, eps_clip: float, eps_clip_high: float, eps_clip_c: float | None = None
) -> tuple[Tensor, Tensor]:
    """Return the loss and the clip indicator (0.0 / 1.0) per token, [tokens] each.

    loss = max(-ratio * A, -clip(ratio, 1 - eps_clip, 1 + eps_clip_high) * A) with ratio = exp(-ppo_kl). With
    `eps_clip_c` (above 1), the loss is at most -eps_clip_c * A where A < 0, which bounds the push of a single token.
    """
    ratio = (-ppo_kl).exp()
    free = -ratio * advantages
    clipped = -ratio.clamp(1 - eps_clip, 1 + eps_clip_high) * advantages
    loss = torch.maximum(free, clipped)
    clip_fraction = (clipped > free).float()
    if eps_clip_c is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -eps_clip_c * advantages), loss)
    return loss, clip_fraction
