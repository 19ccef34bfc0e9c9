"""GRPO (Shao et al., 2024): the normalised reward of a sample is the advantage of each of its tokens.

GSPO (Zheng et al., 2025) and CISPO (MiniMax-M1, 2025) take the same advantage and differ in the loss.
"""

from __future__ import annotations

from torch import Tensor

from slime_events.algorithms.segments import Segments
from slime_events.core.config.algorithm import AlgorithmSettings


def grpo(rewards: Tensor, kl: Tensor, segments: Segments, settings: AlgorithmSettings) -> Tensor:
    """Rewards [samples] -> advantages [tokens]. KL does not enter, whatever `kl_coef` is."""
    return segments.expand(rewards)
