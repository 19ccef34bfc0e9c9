"""PPO's clipped value loss."""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_value_loss(values: Tensor, old_values: Tensor, returns: Tensor, value_clip: float) -> tuple[Tensor, Tensor]:
    """Loss and clip indicator (0.0 / 1.0) per token, [tokens] each; no factor 1/2.

    max((V - R)^2, (V_clip - R)^2) with V_clip = old + clamp(V - old, -value_clip, value_clip).
    """
    clipped_values = old_values + (values - old_values).clamp(-value_clip, value_clip)
    free, clipped = (values - returns).square(), (clipped_values - returns).square()
    return torch.maximum(free, clipped), (clipped > free).float()
