"""A value model's part of PPO: generalised advantage estimation (Schulman et al., 2016), the clipped value loss."""

import torch
from torch import Tensor

from slime_events.algorithms.segments import Segments, discounted_returns

AWAITS = "a value model in the trainer"


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


def clipped_value_loss(values: Tensor, old_values: Tensor, returns: Tensor, value_clip: float) -> tuple[Tensor, Tensor]:
    """Loss and clip indicator (1.0 where |V - old| > value_clip, else 0.0) per token, [tokens] each; no factor 1/2.

    max((V - R)^2, (V_clip - R)^2) with V_clip = old + clamp(V - old, -value_clip, value_clip).
    """
    change = values - old_values
    clipped_values = old_values + change.clamp(-value_clip, value_clip)
    loss = torch.maximum((values - returns).square(), (clipped_values - returns).square())
    return loss, (change.abs() > value_clip).float()
