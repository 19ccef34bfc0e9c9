"""GSPO (Zheng et al., 2025): one importance ratio per sequence."""

from __future__ import annotations

from torch import Tensor

from slime_events.algorithms.segments import Segments


def gspo_kl(log_ratio: Tensor, segments: Segments) -> Tensor:
    """Masked mean of old - new log-probs over each sample, given to all of its tokens; [tokens] -> [tokens]."""
    return segments.expand(segments.masked_mean(log_ratio))
