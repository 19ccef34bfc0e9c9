"""REINFORCE++ (Hu, 2025, arXiv 2501.03262): a KL penalty on each token and the reward on the last, discounted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from slime_events.algorithms.estimators.estimator import Estimator
from slime_events.core.config.algorithm import AlgorithmSettings

if TYPE_CHECKING:
    from torch import Tensor

    from slime_events.algorithms.segments import Segments


@dataclass(frozen=True, slots=True)
class ReinforcePlusPlus(Estimator):
    """A_t = sum over k >= t of gamma^(k - t) * (r at the last trained token - kl_coef * KL_k), whitened over the step.

    Rewards are not normalized.
    """

    takes_kl: ClassVar[bool] = True
    needs_whitening: ClassVar[bool] = True
    discounts: ClassVar[bool] = True
    normalizes_rewards: ClassVar[bool] = False
    scales_rewards: ClassVar[bool] = False

    def reward_normalisation(self, rewards: Sequence[float], settings: AlgorithmSettings) -> list[float]:
        """Return the rewards unchanged."""
        return [float(reward) for reward in rewards]

    def advantage(
        self, rewards: Tensor, kl: Tensor, segments: Segments, settings: AlgorithmSettings, values: Tensor | None = None
    ) -> Tensor:
        """Return advantages [tokens]; the reward is that of the last trained token.

        A sample without trained tokens gets zeros (slime fails with an AssertionError).
        """
        import torch

        from slime_events.algorithms.segments import discounted_returns

        token_rewards = segments.pad(-settings.kl_coef * kl * segments.mask)
        trained = segments.pad(segments.mask.float())
        places = torch.arange(1, segments.longest + 1, device=trained.device)
        last = (trained * places).argmax(dim=1, keepdim=True)
        final = torch.where(segments.mask_sums > 0, rewards, 0.0)
        token_rewards = token_rewards.scatter_add(1, last, final.unsqueeze(1))
        return segments.unpad(discounted_returns(token_rewards, settings.gamma))

    def discount(self, settings: AlgorithmSettings) -> float:
        return settings.gamma
