"""REINFORCE++ (Hu, 2025): a KL penalty on every token, the reward on the last one, discounted from the right."""

from __future__ import annotations

import torch
from torch import Tensor

from slime_events.algorithms.returns import discounted_returns
from slime_events.algorithms.segments import Segments
from slime_events.core.config.algorithm import AlgorithmSettings


def reinforce_plus_plus(rewards: Tensor, kl: Tensor, segments: Segments, settings: AlgorithmSettings) -> Tensor:
    """Rewards [samples] and KL [tokens] -> returns [tokens], to be whitened over the step.

    The reward sits on the last trained token. A sample without one has nothing to learn and gets zeros
    (slime ends the run with an AssertionError there).
    """
    token_rewards = segments.pad(-settings.kl_coef * kl * segments.mask)
    trained = segments.pad(segments.mask.float())
    places = torch.arange(1, segments.longest + 1, device=trained.device)
    last = (trained * places).argmax(dim=1, keepdim=True)
    final = torch.where(segments.mask_sums > 0, rewards, 0.0)
    token_rewards = token_rewards.scatter_add(1, last, final.unsqueeze(1))
    return segments.unpad(discounted_returns(token_rewards, settings.gamma))


def reinforce_plus_plus_baseline(
    rewards: Tensor, kl: Tensor, segments: Segments, settings: AlgorithmSettings
) -> Tensor:
    """REINFORCE++ with the group's mean as baseline: centred reward - kl_coef * kl per token, [tokens]."""
    return segments.expand(rewards) - settings.kl_coef * kl
