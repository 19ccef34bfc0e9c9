"""The policy objective of a micro batch: the loss that the trainer minimizes, its terms and its metrics."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from schemas.doc import doc
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
    """Return the loss (a scalar with gradient) and metrics (detached scalars) of some samples.

    Each list has a [response] tensor per sample. `log_probs` are those of the weights in training and carry gradient;
    `old_log_probs` are the trainer's before the step's first update; `rollout_log_probs` are those with which the
    engine sampled. All are natural logs of logits / temperature.

    Loss and metrics are sums over samples of masked means (sums over trained tokens with `calculate_per_token_loss`).
    The caller adds them over micro batches and ranks, then divides by the step's rollouts (or trained tokens). For
    `rollout_denoms`, see `token_weights`. The settings alone, never the data, decide which metrics exist. `own` is a
    user's correction and reduction of the policy term. A token that a correction rejects counts in no other term, but
    stays in every denominator; metrics of the correction itself are means over all trained tokens.
    Raises TrainerError if lengths disagree, ImpossibleCombination for a KL loss without a reference.
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
    """Return (loss, weights, metrics) per token, [tokens] each, after importance sampling of trainer against engine.

    Rejected tokens have weight 0. Without `use_tis`, a user's correction is measured but not applied.
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
    """Return the loss and metrics of supervised fine-tuning: the negative log-likelihood of the trained tokens.

    Both are sums, as in `policy_objective`.
    """
    segments = Segments.of(loss_masks)
    weights = token_weights(segments, per_token=settings.calculate_per_token_loss, rollout_denoms=rollout_denoms)
    loss = -(segments.join(log_probs, "log_probs") * weights).sum()
    return loss, {"loss": loss.detach()}


def _policy_term(
    new: Tensor, old: Tensor, advantage: Tensor, segments: Segments, settings: AlgorithmSettings
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the estimator's loss per token [tokens] and its metrics."""
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
    """Return the KL to the reference model per token [tokens], with gradient."""
    if ref_log_probs is None:
        raise ImpossibleCombination("use_kl_loss is on but there are no reference log-probs: give a reference model")
    ref = segments.join(ref_log_probs, "ref_log_probs").detach()
    ratio = (new - old).exp() if settings.use_unbiased_kl else None
    return approx_kl(new, ref, settings.kl_loss_type, ratio)


def opsm_mask(log_ratio: Tensor, advantages: Tensor, segments: Segments, delta: float) -> Tensor:
    """Return a weight per token [tokens] that masks bad samples from which the policy has drifted.

    OPSM, off-policy sequence masking (DeepSeek-V3.2, 2025, arXiv 2512.02556): the weight is 0 if the advantage is
    negative and the sample's mean KL is above `delta`, else 1. `log_ratio` is old - new log-probs, [tokens].
    """
    drifted = segments.expand(segments.masked_mean(log_ratio.detach())) > delta
    return (~(drifted & (advantages < 0))).float()


def token_weights(segments: Segments, *, per_token: bool, rollout_denoms: Sequence[float] | None = None) -> Tensor:
    """Return weights w [tokens] such that `(x * w).sum()` is the sum over samples of their masked means.

    Each trained token of a sample weighs 1 / max(1, trained tokens of the sample). With fan-out, `rollout_denoms` has
    the trained tokens of all samples of the rollout, so that a rollout weighs 1 regardless of its number of samples.
    With `per_token`, every trained token weighs 1. The caller divides by the rollouts (or tokens) of the whole step.
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
    """Return the KL per token, elementwise, in nats (Schulman, "Approximating KL divergence", 2020).

    With lr = log_probs - base: k1 = lr (unbiased, signed), k2 = lr^2 / 2, k3 = exp(-lr) - 1 + lr (unbiased, never
    negative), low_var_kl = k3 within [-10, 10]. `importance_ratio` (policy / behavior) makes the estimate and its
    gradient unbiased if a different policy sampled the token; it multiplies before the bound.
    """
    lr = log_probs - base
    match kind:
        case "k1":
            kl = lr
        case "k2":
            kl = lr.square() / 2
        case "k3" | "low_var_kl":
            # expm1 keeps the precision of small values, which exp(-lr) - 1 loses.
            kl = torch.expm1(-lr) + lr
    if importance_ratio is not None:
        kl = importance_ratio * kl
    return kl.clamp(-LOW_VAR_BOUND, LOW_VAR_BOUND) if kind == "low_var_kl" else kl


class Correction(NamedTuple):
    """Importance sampling per token."""

    weight: Annotated[Tensor, doc("[tokens]: weight for the loss")]
    clipped: Annotated[Tensor, doc("[tokens]: 1.0 where the ratio was out of bounds, else 0.0")]
    ratio: Annotated[Tensor, doc("[tokens]: unbounded ratio trainer / engine")]

    @property
    def figures(self) -> dict[str, Tensor]:
        """slime's metrics, by name."""
        return {"tis": self.ratio, "tis_clipfrac": self.clipped, "tis_abs": (self.ratio - 1).abs()}


def truncated(train_log_probs: Tensor, rollout_log_probs: Tensor, low: float, high: float) -> Correction:
    """Return the correction by truncated importance sampling: weight = ratio clamped to [low, high].

    TIS is from Yao et al., "Your efficient RL framework secretly brings you off-policy RL training", 2025. ratio =
    exp(train - rollout), both log-probs of the policy that sampled.
    """
    ratio = (train_log_probs - rollout_log_probs).detach().exp()
    weight = ratio.clamp(low, high)
    return Correction(weight, (weight != ratio).float(), ratio)
