"""OPSM, off-policy sequence masking (DeepSeek-V3.2, 2025): leave out bad samples that the policy has drifted from."""

from __future__ import annotations

from torch import Tensor

from slime_events.algorithms.segments import Segments


def opsm_mask(log_ratio: Tensor, advantages: Tensor, segments: Segments, delta: float) -> Tensor:
    """Weight per token [tokens]: 0 where the advantage is negative and the sample's mean KL is above `delta`, else 1.

    `log_ratio` is old - new log-probs, [tokens].
    """
    drifted = segments.expand(segments.masked_mean(log_ratio.detach())) > delta
    return (~(drifted & (advantages < 0))).float()
