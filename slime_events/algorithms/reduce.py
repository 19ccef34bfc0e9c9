"""From one value per token to one number per step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from schemas.errors import TrainerError
from slime_events.algorithms.segments import Segments


def token_weights(segments: Segments, *, per_token: bool, rollout_denoms: Sequence[float] | None = None) -> Tensor:
    """Weights w [tokens], so that `(x * w).sum()` is the sum over samples of their masked means.

    A sample's tokens share 1 / max(1, trained tokens of the sample); with fan-out, 1 / max(1, `rollout_denoms`), the
    trained tokens of all samples of its rollout, so that a rollout weighs 1 however many samples it became. With
    `per_token` every trained token weighs 1. The caller divides by the rollouts (or tokens) of the whole step.
    """
    if per_token:
        return segments.mask.float()
    denoms = segments.mask_sums
    if rollout_denoms is not None:
        if len(rollout_denoms) != len(segments.lengths):
            raise TrainerError(f"{len(rollout_denoms)} rollout denominators for {len(segments.lengths)} samples")
        denoms = torch.tensor(list(rollout_denoms), dtype=torch.float32, device=segments.mask.device)
    return segments.mask / segments.expand(denoms.clamp_min(1))
