"""What a critic learns from: the clipped value loss of PPO; and how good it was."""

from collections.abc import Sequence

import torch
from torch import Tensor

from slime_events.algorithms.objective import token_weights
from slime_events.algorithms.segments import Segments
from slime_events.core.config.algorithm import AlgorithmSettings


def value_objective(
    *,
    values: list[Tensor],
    old_values: list[Tensor],
    returns: list[Tensor],
    loss_masks: list[Tensor],
    rollout_denoms: list[float] | None,
    settings: AlgorithmSettings,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss (a scalar with gradient) and figures (detached scalars) of the samples given, [response] tensors each.

    values: of the critic that is trained, with gradient; old_values: before the step's first update. All are sums as
    those of `policy_objective`, and divided by the same.
    """
    segments = Segments.of(loss_masks)
    new = segments.join(values, "values")
    old, targets = segments.join(old_values, "old_values"), segments.join(returns, "returns")
    loss, clipped = clipped_value_loss(new, old.detach(), targets.detach(), settings.value_clip)
    weights = token_weights(segments, per_token=settings.calculate_per_token_loss, rollout_denoms=rollout_denoms)
    total = (loss * weights).sum()
    return total, {"value_loss": total.detach(), "value_clipfrac": (clipped * weights).sum()}


def clipped_value_loss(values: Tensor, old_values: Tensor, returns: Tensor, value_clip: float) -> tuple[Tensor, Tensor]:
    """Loss and clip indicator (1.0 where |V - old| > value_clip, else 0.0) per token, [tokens] each; no factor 1/2.

    max((V - R)^2, (V_clip - R)^2) with V_clip = old + clamp(V - old, -value_clip, value_clip).
    """
    change = values - old_values
    clipped_values = old_values + change.clamp(-value_clip, value_clip)
    loss = torch.maximum((values - returns).square(), (clipped_values - returns).square())
    return loss, (change.abs() > value_clip).float()


def value_figures(
    values: Sequence[Tensor], returns: Sequence[Tensor], advantages: Sequence[Tensor], loss_masks: Sequence[Tensor]
) -> dict[str, float]:
    """How good the critic was before the update, over the trained tokens of all samples, [response] tensors each.

    values, returns, advantages: means. explained_variance: 1 - var(returns - values) / var(returns): 1 is a perfect
    critic, 0 one that says the same of every token; left out where all returns are equal.
    """
    trained = torch.cat(list(loss_masks)) != 0
    if not trained.any():
        return {}
    said, was, better = (torch.cat(list(parts)).double()[trained] for parts in (values, returns, advantages))
    figures = {"values": float(said.mean()), "returns": float(was.mean()), "advantages": float(better.mean())}
    if spread := float(was.var(correction=0)):
        figures["explained_variance"] = 1 - float((was - said).var(correction=0)) / spread
    return figures
