"""PPO's clipped value loss, which trains the critic, and metrics of the critic's accuracy."""

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
    """Return the loss (a scalar with gradient) and metrics (detached scalars) of some samples.

    Each list has a [response] tensor per sample. `values` come from the critic in training and carry gradient;
    `old_values` are the critic's before the step's first update. Loss and metrics are sums, as in `policy_objective`,
    and the caller divides them by the same number.
    """
    segments = Segments.of(loss_masks)
    new = segments.join(values, "values")
    old, targets = segments.join(old_values, "old_values"), segments.join(returns, "returns")
    loss, clipped = clipped_value_loss(new, old.detach(), targets.detach(), settings.value_clip)
    weights = token_weights(segments, per_token=settings.calculate_per_token_loss, rollout_denoms=rollout_denoms)
    total = (loss * weights).sum()
    return total, {"value_loss": total.detach(), "value_clipfrac": (clipped * weights).sum()}


def clipped_value_loss(values: Tensor, old_values: Tensor, returns: Tensor, value_clip: float) -> tuple[Tensor, Tensor]:
    """Return the loss and the clip indicator (1.0 where |V - old| > value_clip, else 0.0) per token, [tokens] each.

    loss = max((V - R)^2, (V_clip - R)^2) with V_clip = old + clamp(V - old, -value_clip, value_clip); no factor 1/2.
    """
    change = values - old_values
    clipped_values = old_values + change.clamp(-value_clip, value_clip)
    loss = torch.maximum((values - returns).square(), (clipped_values - returns).square())
    return loss, (change.abs() > value_clip).float()


def value_figures(
    values: Sequence[Tensor], returns: Sequence[Tensor], advantages: Sequence[Tensor], loss_masks: Sequence[Tensor]
) -> dict[str, float]:
    """Return metrics of the critic before the update, over the trained tokens of all samples.

    Each sequence has a [response] tensor per sample. `values`, `returns` and `advantages` are means.
    `explained_variance` is 1 - var(returns - values) / var(returns): 1 for a perfect critic, 0 for a constant one. It
    is left out if all returns are equal.
    """
    trained = torch.cat(list(loss_masks)) != 0
    if not trained.any():
        return {}
    columns = {"values": values, "returns": returns, "advantages": advantages}
    flat = {name: torch.cat(list(parts)).double()[trained] for name, parts in columns.items()}
    figures = {name: float(tokens.mean()) for name, tokens in flat.items()}
    if spread := float(flat["returns"].var(correction=0)):
        figures["explained_variance"] = 1 - float((flat["returns"] - flat["values"]).var(correction=0)) / spread
    return figures
