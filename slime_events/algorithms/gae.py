"""PPO's advantages: generalised advantage estimation (Schulman et al., 2016) over token rewards."""

from __future__ import annotations

import torch
from torch import Tensor

from slime_events.algorithms.returns import discounted_returns
from slime_events.algorithms.segments import Segments


def gae(rewards: Tensor, values: Tensor, gamma: float, lambd: float) -> tuple[Tensor, Tensor]:
    """Advantages and returns of token rewards and values, all [samples, tokens], zeros right of a sample's end.

    delta_t = r_t + gamma * V_{t+1} - V_t with V = 0 past the end; A_t = sum of (gamma * lambd)^k * delta_{t+k};
    return_t = A_t + V_t.
    """
    following = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], dim=1)
    advantages = discounted_returns(rewards + gamma * following - values, gamma * lambd)
    return advantages, advantages + values


def ppo_advantages(
    rewards: Tensor, kl: Tensor, values: Tensor, segments: Segments, *, kl_coef: float, gamma: float, lambd: float
) -> tuple[Tensor, Tensor]:
    """PPO's advantages and returns, [tokens] each, of rewards [samples] and KL and values [tokens].

    A token's reward is -kl_coef * kl; the sample's reward is added at its last token, trained on or not.
    """
    ends = torch.tensor(segments.lengths, device=kl.device).clamp_min(1) - 1
    token_rewards = segments.pad(-kl_coef * kl).scatter_add(1, ends.unsqueeze(1), rewards.unsqueeze(1))
    advantages, returns = gae(token_rewards, segments.pad(values), gamma, lambd)
    return segments.unpad(advantages), segments.unpad(returns)
