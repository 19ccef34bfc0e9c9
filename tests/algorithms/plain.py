"""The algorithms once more, from their papers, in float64 and one token after the other. Shares no code with ours.

Values are Python floats, or float64 scalars of torch where a gradient is asked for: then autograd gives that of this
very formula.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

Row = list[float]
Mask = Sequence[int]


def clamp(value: Any, low: float, high: float) -> Any:
    return torch.clamp(torch.as_tensor(value, dtype=torch.float64), low, high)


def exp(value: Any) -> Any:
    return torch.exp(torch.as_tensor(value, dtype=torch.float64))


def kl(lr: Any, kind: str, weight: Any = 1.0) -> Any:
    """Return the divergence at one token, lr = log pi - log ref: Schulman's k1, k2, k3."""
    value = {"k1": lr, "k2": lr * lr / 2}.get(kind)
    value = weight * (exp(-lr) - 1 + lr if value is None else value)
    return clamp(value, -10, 10) if kind == "low_var_kl" else value


def group_rewards(estimator: str, rewards: Row, *, scale: bool) -> Row:
    if estimator in ("reinforce_plus_plus", "ppo"):
        return rewards
    mean = sum(rewards) / len(rewards)
    if estimator == "reinforce_plus_plus_baseline" or not scale or len(rewards) == 1:
        return [reward - mean for reward in rewards]
    variance = sum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1)
    return [(reward - mean) / (math.sqrt(variance) + 1e-6) for reward in rewards]


def advantages(estimator: str, reward: float, kls: Row, mask: Mask, *, kl_coef: float, gamma: float) -> Row:
    """Compute the advantages of one sample. reward: normalised. kls: to the reference, by token; of a token that is not
    trained on it is 0.
    """
    if estimator == "reinforce_plus_plus_baseline":
        return [reward - kl_coef * term for term in kls]
    if estimator != "reinforce_plus_plus":
        return [reward] * len(kls)
    trained = [place for place, flag in enumerate(mask) if flag]
    token = [-kl_coef * term for term in kls]
    if trained:
        token[trained[-1]] += reward
    return [sum(gamma ** (later - t) * token[later] for later in range(t, len(token))) for t in range(len(token))]


def distilled(row: Row, student: Row, teacher: Row, coef: float) -> Row:
    """Less the reverse KL of each token."""
    return [reward - coef * (own - other) for reward, own, other in zip(row, student, teacher, strict=True)]


def whitened(rows: list[Row], masks: Sequence[Mask]) -> list[Row]:
    """Over all trained tokens, unbiased variance."""
    values = [v for row, mask in zip(rows, masks, strict=True) for v, m in zip(row, mask, strict=True) if m]
    mean = sum(values) / max(1, len(values))
    variance = sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)
    scale = 1 / math.sqrt(variance + 1e-8) if len(values) > 1 else 1.0
    return [[(value - mean) * scale for value in row] for row in rows]


def policy_token(s: Any, new: Any, log_ratio: Any, advantage: float) -> Any:
    """The policy loss of one token. log_ratio: new - old log-probs, as the estimator takes them."""
    low, high = 1 - s.eps_clip, 1 + (s.eps_clip if s.eps_clip_high is None else s.eps_clip_high)
    ratio = exp(log_ratio)
    if s.advantage_estimator == "cispo":
        return -clamp(ratio, low, high).detach() * advantage * new
    loss = torch.maximum(-ratio * advantage, -clamp(ratio, low, high) * advantage)
    if s.eps_clip_c is not None and advantage < 0:
        loss = torch.minimum(loss, torch.tensor(-s.eps_clip_c * advantage, dtype=torch.float64))
    return loss


def sample_tokens(s: Any, rows: dict[str, Any]) -> list[Any]:
    """Loss of each trained token of a sample. rows: new, old, rollout, ref, entropy, advantages, masks."""
    trained = [place for place, flag in enumerate(rows["masks"]) if flag]
    before = rows["rollout"] if s.use_rollout_logprobs else rows["old"]
    differences = [rows["new"][t] - before[t] for t in trained]
    mean = sum(differences) / max(1, len(trained))
    losses = []
    for difference, t in zip(differences, trained, strict=True):
        new, advantage = rows["new"][t], rows["advantages"][t]
        ratio = mean if s.advantage_estimator == "gspo" else difference
        loss = policy_token(s, new, ratio, advantage)
        if s.use_opsm and advantage < 0 and -float(torch.as_tensor(mean).detach()) > s.opsm_delta:
            loss = loss * 0
        if s.use_tis:
            loss = loss * clamp(exp(rows["old"][t] - rows["rollout"][t]), s.tis_clip_low, s.tis_clip)
        loss = loss - s.entropy_coef * rows["entropy"][t]
        if s.use_kl_loss:
            weight = exp(difference) if s.use_unbiased_kl else 1.0
            loss = loss + s.kl_loss_coef * kl(new - rows["ref"][t], s.kl_loss_type, weight)
        losses.append(loss)
    return losses


def gae(rewards: Row, values: Row, gamma: float, lambd: float) -> tuple[Row, Row]:
    """(advantages, returns) by the recurrence from the right."""
    advantages, following, ahead = [0.0] * len(rewards), 0.0, 0.0
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * following - values[t]
        ahead = delta + gamma * lambd * ahead
        advantages[t], following = ahead, values[t]
    return advantages, [advantage + value for advantage, value in zip(advantages, values, strict=True)]
