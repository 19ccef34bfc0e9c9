"""Estimators of KL(policy || base) from one sampled token (Schulman, "Approximating KL divergence", 2020)."""

from __future__ import annotations

import torch
from torch import Tensor

from slime_events.core.config.algorithm import KlType

LOW_VAR_BOUND = 10.0


def approx_kl(log_probs: Tensor, base: Tensor, kind: KlType, importance_ratio: Tensor | None = None) -> Tensor:
    """KL per token, elementwise, in nats; with lr = log_probs - base:

    k1 = lr (unbiased, signed), k2 = lr^2 / 2, k3 = exp(-lr) - 1 + lr (unbiased, never negative), low_var_kl = k3
    within [-10, 10]. `importance_ratio` (policy / behaviour) makes the estimate and its gradient unbiased where the
    token came from another policy; it multiplies before the bound.
    """
    lr = log_probs - base
    match kind:
        case "k1":
            kl = lr
        case "k2":
            kl = lr.square() / 2
        case "k3" | "low_var_kl":
            # expm1 keeps the small values, where exp(-lr) - 1 cancels.
            kl = torch.expm1(-lr) + lr
    if importance_ratio is not None:
        kl = importance_ratio * kl
    return kl.clamp(-LOW_VAR_BOUND, LOW_VAR_BOUND) if kind == "low_var_kl" else kl
