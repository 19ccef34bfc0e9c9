"""Advantages per response token, computed from rewards."""

from collections.abc import Callable

import torch
from torch import Tensor

from schemas.errors import ImpossibleCombination
from slime_events.algorithms.estimators import estimator_of
from slime_events.algorithms.objective import approx_kl
from slime_events.algorithms.opd import distilled
from slime_events.algorithms.segments import Segments
from slime_events.core.config.algorithm import AlgorithmSettings

AllReduce = Callable[[Tensor], Tensor]
"""Sums a small float64 tensor over the data parallel ranks, which include the context parallel ranks."""

EPS = 1e-8


@torch.no_grad()
def compute_advantages(
    rewards: Tensor,
    log_probs: list[Tensor],
    ref_log_probs: list[Tensor] | None,
    loss_masks: list[Tensor],
    settings: AlgorithmSettings,
    *,
    values: list[Tensor] | None = None,
    teacher_log_probs: list[Tensor] | None = None,
    token_credit: list[Tensor | None] | None = None,
    all_reduce: AllReduce | None = None,
) -> tuple[list[Tensor], list[Tensor]]:
    """Return advantages and returns per sample, float32 [response] each, on the device of the masks, without gradient.

    rewards: [samples], normalized over their groups.
    log_probs: of the policy before the update, [response] each.
    ref_log_probs: of the reference model, needed if `kl_coef` is not 0.
    values: of a critic before the update, if the estimator needs them.
    teacher_log_probs: needed with `use_opd`.
    token_credit: factors on the estimator's advantages, [response] each; None for ones.

    With `normalize_advantages`, advantages are whitened over all trained tokens in these lists and, through
    `all_reduce`, over those of the other data parallel ranks: call it once with the whole step, not per micro batch. A
    return, the critic's target, is the estimator's advantage + value.
    Raises TrainerError if lengths disagree, ImpossibleCombination for a KL without a reference or a teacher.
    """
    segments = Segments.of(loss_masks)
    kl = token_kl(log_probs, ref_log_probs, segments, settings)
    flat_values = None if values is None else torch.cat(values).to(kl)
    flat = estimator_of(settings).advantage(rewards.to(kl), kl, segments, settings, flat_values)
    if token_credit is not None and any(credit is not None for credit in token_credit):
        ones = map(torch.ones_like, segments.split(flat))
        parts = [default if credit is None else credit for credit, default in zip(token_credit, ones, strict=True)]
        flat = flat * segments.join(parts, "token_credit").to(flat)
    returns = flat if flat_values is None else flat + flat_values
    advantages = _finished(flat, log_probs, teacher_log_probs, segments, settings, all_reduce)
    return segments.split(advantages), segments.split(returns)


def token_kl(
    log_probs: list[Tensor], ref_log_probs: list[Tensor] | None, segments: Segments, settings: AlgorithmSettings
) -> Tensor:
    """Return the KL to the reference per token [tokens]; zeros, without a reference pass, if `kl_coef` is 0."""
    if settings.kl_coef == 0:
        return torch.zeros(len(segments.mask), device=segments.mask.device)
    if ref_log_probs is None:
        raise ImpossibleCombination("kl_coef is not 0 but there are no reference log-probs: give a reference model")
    policy = segments.join(log_probs, "log_probs")
    return approx_kl(policy, segments.join(ref_log_probs, "ref_log_probs"), settings.kl_loss_type)


def token_kls(
    log_probs: list[Tensor],
    ref_log_probs: list[Tensor] | None,
    loss_masks: list[Tensor],
    settings: AlgorithmSettings,
) -> list[Tensor]:
    """Return `token_kl` per sample, [response] each."""
    segments = Segments.of(loss_masks)
    return segments.split(token_kl(log_probs, ref_log_probs, segments, settings))


def finished(
    advantages: list[Tensor],
    log_probs: list[Tensor],
    loss_masks: list[Tensor],
    settings: AlgorithmSettings,
    *,
    teacher_log_probs: list[Tensor] | None = None,
) -> list[Tensor]:
    """Apply the common last steps, `use_opd` and then `normalize_advantages`, to a user's advantages, [response] each.

    The other arguments are those of `compute_advantages`.
    """
    segments = Segments.of(loss_masks)
    return segments.split(_finished(torch.cat(advantages), log_probs, teacher_log_probs, segments, settings))


def _finished(
    flat: Tensor,
    log_probs: list[Tensor],
    teacher_log_probs: list[Tensor] | None,
    segments: Segments,
    settings: AlgorithmSettings,
    all_reduce: AllReduce | None = None,
) -> Tensor:
    if settings.use_opd:
        flat = distilled(flat, log_probs, teacher_log_probs, segments, settings.opd_kl_coef)
    return masked_whiten(flat, segments.mask, all_reduce) if settings.normalize_advantages else flat


def moves(advantages: list[Tensor], loss_masks: list[Tensor]) -> list[bool]:
    """Return per sample whether any trained token has an advantage that is not exactly 0."""
    segments = Segments.of(loss_masks)
    nonzero = (torch.cat(advantages) != 0) & segments.mask
    moved: list[bool] = (segments.pad(nonzero.float()).sum(1) > 0).tolist()
    return moved


def masked_whiten(
    values: Tensor, mask: Tensor, all_reduce: AllReduce | None = None, *, shift_mean: bool = True
) -> Tensor:
    """Return (values - mean) * rsqrt(var + 1e-8), with mean and unbiased variance over the trained tokens of all ranks.

    `values` and `mask` are [tokens]; tokens outside the mask are transformed as well. With fewer than two trained
    tokens, values are only centered. Without `shift_mean`, the mean is added again, as in slime.
    """
    trained = values.double() * mask
    moments = torch.stack([mask.double().sum(), trained.sum(), trained.square().sum()])
    if all_reduce is not None:
        moments = all_reduce(moments)
    count, total, squares = moments
    mean = total / count.clamp_min(1)
    variance = ((squares - count * mean.square()) / (count - 1).clamp_min(1)).clamp_min(0)
    scale = torch.where(count < 2, 1.0, torch.rsqrt(variance + EPS))
    whitened: Tensor = (values - mean) * scale + (0.0 if shift_mean else mean)
    return whitened.to(values.dtype)
