"""The policy objective of a micro batch: what the trainer minimises, its terms, and the figures that explain it."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from schemas.errors import ImpossibleCombination, TrainerError
from slime_events.algorithms.correction import OwnTerms, corrected, figures_of_mismatch, reduced
from slime_events.algorithms.estimators import estimator_of
from slime_events.algorithms.segments import Segments
from slime_events.core.config.algorithm import AlgorithmSettings, KlType


def policy_objective(
    *,
    log_probs: list[Tensor],
    old_log_probs: list[Tensor],
    rollout_log_probs: list[Tensor],
    ref_log_probs: list[Tensor] | None,
    advantages: list[Tensor],
    loss_masks: list[Tensor],
    rollout_denoms: list[float] | None,
    entropy: list[Tensor] | None,
    settings: AlgorithmSettings,
    own: OwnTerms | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss (a scalar with gradient) and metrics (detached scalars) of the samples given, [response] tensors each.

    log_probs: under the weights being trained, with gradient; old_log_probs: the trainer's before the step's first
    update; rollout_log_probs: as the engine sampled. All are natural logs of logits / temperature.

    Loss and metrics are sums over samples of masked means (sums over trained tokens with `calculate_per_token_loss`):
    add them over micro batches and ranks, then divide by the step's rollouts (or trained tokens). `rollout_denoms`:
    see `token_weights`. Which metrics there are depends on the settings alone, never on the data. own: a user's
    correction and sum of the policy term. What a correction rejects counts in no other term either, and stays in every
    denominator; figures of the correction itself are means over all trained tokens.
    Raises TrainerError for lengths that disagree, ImpossibleCombination for a KL loss without a reference.
    """
    segments = Segments.of(loss_masks)
    new = segments.join(log_probs, "log_probs")
    trainer_old = segments.join(old_log_probs, "old_log_probs").detach()
    rollout = segments.join(rollout_log_probs, "rollout_log_probs").detach()
    advantage = segments.join(advantages, "advantages").detach()
    old = rollout if settings.use_rollout_logprobs else trainer_old

    pg_loss, metrics = _policy_term(new, old, advantage, segments, settings)
    metrics["train_rollout_logprob_abs_diff"] = (trainer_old - rollout).abs()
    weights = token_weights(segments, per_token=settings.calculate_per_token_loss, rollout_denoms=rollout_denoms)
    pg_loss, left, apart = _correction(pg_loss, weights, trainer_old, rollout, segments, settings, own)
    if settings.get_mismatch_metrics:
        apart |= figures_of_mismatch(new - old, trainer_old, rollout, segments)
    reducer = None if own is None else own.reducer
    loss = pg_loss if reducer is None else torch.zeros_like(pg_loss)
    metrics["pg_loss"] = pg_loss

    if entropy is not None:
        metrics["entropy_loss"] = segments.join(entropy, "entropy")
        loss = loss - settings.entropy_coef * metrics["entropy_loss"]
    if settings.use_kl_loss:
        metrics["kl_loss"] = _reference_kl(new, old, ref_log_probs, segments, settings)
        loss = loss + settings.kl_loss_coef * metrics["kl_loss"]

    metrics["loss"] = loss
    total, sums = (loss * left).sum(), _sums(apart, weights) | _sums(metrics, left)
    if own is not None and reducer is not None:
        of_policy = reduced(own, reducer, pg_loss, left, segments, per_token=settings.calculate_per_token_loss)
        total = total + of_policy
        sums |= {"pg_loss": of_policy.detach(), "loss": total.detach()}
    return total, sums


def _correction(
    pg_loss: Tensor,
    weights: Tensor,
    trainer_old: Tensor,
    rollout: Tensor,
    segments: Segments,
    settings: AlgorithmSettings,
    own: OwnTerms | None,
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """(loss per token, weights without what is rejected, figures per token), [tokens] each: corrected by importance
    sampling of engine against trainer, or measured only.
    """
    if own is not None and own.tis is not None:
        fixed = corrected(own, own.tis, pg_loss, trainer_old, rollout, segments)
        return (
            (fixed.loss, weights * fixed.kept, fixed.metrics) if settings.use_tis else (pg_loss, weights, fixed.metrics)
        )
    if not settings.use_tis:
        return pg_loss, weights, {}
    correction = truncated(trainer_old, rollout, settings.tis_clip_low, settings.tis_clip)
    return pg_loss * correction.weight, weights, correction.figures


def _sums(per_token: dict[str, Tensor], weights: Tensor) -> dict[str, Tensor]:
    return {name: (value.detach() * weights).sum() for name, value in per_token.items()}


def sft_objective(
    log_probs: list[Tensor],
    loss_masks: list[Tensor],
    rollout_denoms: list[float] | None,
    settings: AlgorithmSettings,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Supervised fine-tuning: the negative log-likelihood of the trained tokens. Sums as `policy_objective`'s."""
    segments = Segments.of(loss_masks)
    weights = token_weights(segments, per_token=settings.calculate_per_token_loss, rollout_denoms=rollout_denoms)
    loss = -(segments.join(log_probs, "log_probs") * weights).sum()
    return loss, {"loss": loss.detach()}


def _policy_term(
    new: Tensor, old: Tensor, advantage: Tensor, segments: Segments, settings: AlgorithmSettings
) -> tuple[Tensor, dict[str, Tensor]]:
    """The estimator's loss per token [tokens] and its metrics."""
    log_ratio = old - new
    pg_loss, clipped, ppo_kl = estimator_of(settings).loss(log_ratio, new, advantage, segments, settings)
    metrics = {"pg_clipfrac": clipped, "ppo_kl": ppo_kl}
    if settings.use_opsm:
        kept = opsm_mask(log_ratio, advantage, segments, settings.opsm_delta)
        pg_loss = pg_loss * kept
        metrics["opsm_clipfrac"] = 1 - kept
    return pg_loss, metrics


def _reference_kl(
    new: Tensor, old: Tensor, ref_log_probs: list[Tensor] | None, segments: Segments, settings: AlgorithmSettings
) -> Tensor:
    """KL to the reference model per token [tokens], with gradient."""
    if ref_log_probs is None:
        raise ImpossibleCombination("use_kl_loss is on but there are no reference log-probs: give a reference model")
    ref = segments.join(ref_log_probs, "ref_log_probs").detach()
    ratio = (new - old).exp() if settings.use_unbiased_kl else None
    return approx_kl(new, ref, settings.kl_loss_type, ratio)


def opsm_mask(log_ratio: Tensor, advantages: Tensor, segments: Segments, delta: float) -> Tensor:
    """OPSM, off-policy sequence masking (DeepSeek-V3.2, 2025, arXiv 2512.02556): leaves out bad samples that the policy
    drifted from.

    Weight per token [tokens]: 0 where the advantage is negative and the sample's mean KL is above `delta`, else 1.
    `log_ratio` is old - new log-probs, [tokens].
    """
    drifted = segments.expand(segments.masked_mean(log_ratio.detach())) > delta
    return (~(drifted & (advantages < 0))).float()


def token_weights(segments: Segments, *, per_token: bool, rollout_denoms: Sequence[float] | None = None) -> Tensor:
    """Weights w [tokens], so that `(x * w).sum()` is the sum over samples of their masked means.

    A sample's tokens share 1 / max(1, trained tokens of the sample); with fan-out, 1 / max(1, `rollout_denoms`), the
    trained tokens of all samples of its rollout, so that a rollout weighs 1 however many samples it became. With
    `per_token` every trained token weighs 1. The caller divides by the rollouts (or tokens) of the whole step.
    """
    if per_token:
        return segments.mask.float()
    denoms = segments.mask_sums
    if rollout_denoms is not None:
        if len(rollout_denoms) != len(segments.lengths):
            raise TrainerError(f"{len(rollout_denoms)} rollout denominators for {len(segments.lengths)} samples")
        denoms = torch.tensor(list(rollout_denoms), dtype=torch.float32, device=segments.mask.device)
    return segments.mask / segments.expand(denoms.clamp_min(1))


LOW_VAR_BOUND = 10.0


def approx_kl(log_probs: Tensor, base: Tensor, kind: KlType, importance_ratio: Tensor | None = None) -> Tensor:
    """KL per token, elementwise, in nats (Schulman, "Approximating KL divergence", 2020). lr = log_probs - base:

    k1 = lr (unbiased, signed), k2 = lr^2 / 2, k3 = exp(-lr) - 1 + lr (unbiased, never negative), low_var_kl = k3
    within [-10, 10]. `importance_ratio` (policy / behaviour) makes the estimate and its gradient unbiased where the
    token came from another policy; it multiplies before the bound.
    """
    lr = log_probs - base
    match kind:
        case "k1":
            kl = lr
        case "k2":
            kl = lr.square() / 2
        case "k3" | "low_var_kl":
            # expm1 keeps the small values, where exp(-lr) - 1 cancels.
            kl = torch.expm1(-lr) + lr
    if importance_ratio is not None:
        kl = importance_ratio * kl
    return kl.clamp(-LOW_VAR_BOUND, LOW_VAR_BOUND) if kind == "low_var_kl" else kl


class Correction(NamedTuple):
    """Per token, [tokens] each: the weight for the loss, 1.0 where it was bounded, the plain ratio trainer / engine."""

    weight: Tensor
    clipped: Tensor
    ratio: Tensor

    @property
    def figures(self) -> dict[str, Tensor]:
        """By the names of slime's metrics."""
        return {"tis": self.ratio, "tis_clipfrac": self.clipped, "tis_abs": (self.ratio - 1).abs()}


def truncated(train_log_probs: Tensor, rollout_log_probs: Tensor, low: float, high: float) -> Correction:
    """TIS, truncated importance sampling (Yao et al., "Your efficient RL framework secretly brings you off-policy RL
    training", 2025): weight = ratio within [low, high]; ratio = exp(train - rollout), both of the policy that sampled.
    """
    ratio = (train_log_probs - rollout_log_probs).detach().exp()
    weight = ratio.clamp(low, high)
    return Correction(weight, (weight != ratio).float(), ratio)
