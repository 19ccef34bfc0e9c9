"""PPO with a critic (Schulman et al., 2017, arXiv 1707.06347): the advantage of a token over the critic's estimate."""

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
class Ppo(Estimator):
    """A_t = sum over k >= t of (gamma * lambd)^(k - t) * (r_k + gamma * V_{k+1} - V_k); PPO's clipped loss.

    r_k is -kl_coef * KL_k, plus the reward on the last token. Rewards are not normalized, so that one sample per
    prompt is enough.
    """

    takes_kl: ClassVar[bool] = True
    needs_values: ClassVar[bool] = True
    discounts: ClassVar[bool] = True
    normalizes_rewards: ClassVar[bool] = False
    scales_rewards: ClassVar[bool] = False

    def reward_normalisation(self, rewards: Sequence[float], settings: AlgorithmSettings) -> list[float]:
        """Return the rewards unchanged."""
        return [float(reward) for reward in rewards]

    def advantage(
        self, rewards: Tensor, kl: Tensor, segments: Segments, settings: AlgorithmSettings, values: Tensor | None = None
    ) -> Tensor:
        """Return GAE with -kl_coef * kl as the reward of each token, plus the sample's reward on its last token.

        The last token counts even if it is not trained. values: the critic's before the update, [tokens]. Raises
        TrainerError without them.
        """
        import torch

        from schemas.errors import TrainerError
        from slime_events.algorithms.segments import gae

        if values is None:
            raise TrainerError("advantage_estimator ppo needs the values of a critic, but there are none")
        ends = torch.tensor(segments.lengths, device=kl.device).clamp_min(1) - 1
        token_rewards = segments.pad(-settings.kl_coef * kl).scatter_add(1, ends.unsqueeze(1), rewards.unsqueeze(1))
        return segments.unpad(gae(token_rewards, segments.pad(values), settings.gamma, settings.lambd))
