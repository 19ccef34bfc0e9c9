"""REINFORCE++ with a baseline (Hu, 2025, arXiv 2501.03262): reward minus its group's mean, a KL on each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from slime_events.algorithms.estimators.estimator import Estimator, normalize_group
from slime_events.core.config.algorithm import AlgorithmSettings

if TYPE_CHECKING:
    from torch import Tensor

    from slime_events.algorithms.segments import Segments


@dataclass(frozen=True, slots=True)
class ReinforcePlusPlusBaseline(Estimator):
    """A_t = r - mean(r) over the group - kl_coef * KL_t, whitened over the step."""

    takes_kl: ClassVar[bool] = True
    needs_whitening: ClassVar[bool] = True
    scales_rewards: ClassVar[bool] = False

    def reward_normalisation(self, rewards: Sequence[float], settings: AlgorithmSettings) -> list[float]:
        """Return the rewards centered, never scaled."""
        return normalize_group(rewards, scale=False)

    def advantage(
        self, rewards: Tensor, kl: Tensor, segments: Segments, settings: AlgorithmSettings, values: Tensor | None = None
    ) -> Tensor:
        """Return centered reward - kl_coef * kl of each token, [tokens]."""
        return segments.expand(rewards) - settings.kl_coef * kl
