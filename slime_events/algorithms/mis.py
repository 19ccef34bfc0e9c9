"""Importance sampling between engine and trainer at the height of a token, a sequence or their geometric mean.

Weights for the loss and, apart from them, a mask that rejects tokens or whole samples (Liu and Li, "When speed kills
stability", 2025; the rules of slime's train_infer_mismatch_helper example). Masking single tokens is IcePop (2025).

The functions that take `args` are for `--custom-tis-function-path`, by slime's names and with its signature.
"""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from schemas.errors import ImpossibleCombination
from slime_events.algorithms.objective import Correction, truncated
from slime_events.algorithms.segments import Segments

SAFETY_BOUND = 20.0
"""On |log ratio|, so that the product over a long sequence stays finite."""


class Level(enum.StrEnum):
    """What one ratio is of: a token, the product over the sample, or the geometric mean of its tokens."""

    TOKEN = "token"
    SEQUENCE = "sequence"
    GEOMETRIC = "geometric"


class Mode(enum.StrEnum):
    """A weight out of bounds: cap it from above, bound it on both sides, or keep it and reject the token."""

    TRUNCATE = "truncate"
    CLIP = "clip"
    MASK = "mask"


@dataclass(frozen=True, slots=True)
class MisRule:
    """How to weight and what to reject.

    reject: rejection whatever the mode, of ratios at `reject_level` outside of `reject_lower` and `reject_upper`; where
    these are None, as the weights'. veto: a sample with one trained token whose ratio is below it is rejected whole;
    None is off. batch_normalize: scale the weights of the trained tokens to mean 1.
    """

    level: Level = Level.TOKEN
    mode: Mode = Mode.TRUNCATE
    lower: float = 0.5
    upper: float = 2.0
    reject: bool = False
    veto: float | None = 1e-4
    batch_normalize: bool = False
    reject_level: Level | None = None
    reject_lower: float | None = None
    reject_upper: float | None = None

    @classmethod
    def of(cls, args: Any) -> "MisRule":
        """slime's names of it. No lower bound is one over the upper one; the veto is a part of the rejection.

        Raises ImpossibleCombination for bounds that leave nothing between them.
        """
        upper = args.tis_upper_bound
        rule = cls(
            level=Level(args.tis_level),
            mode=Mode(args.tis_mode),
            lower=1 / upper if args.tis_lower_bound is None else args.tis_lower_bound,
            upper=upper,
            reject=args.use_rs,
            veto=args.rs_veto_threshold if args.use_rs else None,
            batch_normalize=args.tis_batch_normalize,
            reject_level=Level(args.rs_level),
            reject_lower=args.rs_lower_bound,
            reject_upper=args.rs_upper_bound,
        )
        if rule.lower >= rule.upper:
            raise ImpossibleCombination(f"tis_lower_bound {rule.lower} is not below tis_upper_bound {rule.upper}")
        return rule


def mis_weights(train: Tensor, rollout: Tensor, segments: Segments, rule: MisRule) -> tuple[Tensor, Tensor]:
    """Weights and mask (0.0 / 1.0) per token, [tokens] each, of log-probs [tokens]; zeros outside the loss mask."""
    log_ratio = (train - rollout).detach()
    weights = _ratio(log_ratio, segments, rule.level)
    mask = segments.mask.float()
    if rule.mode is Mode.MASK:
        mask = mask * _inside(weights, rule.lower, rule.upper)
    if rule.reject:
        ratio = _ratio(log_ratio, segments, rule.reject_level or rule.level)
        low = rule.lower if rule.reject_lower is None else rule.reject_lower
        mask = mask * _inside(ratio, low, rule.upper if rule.reject_upper is None else rule.reject_upper)
    if rule.veto is not None:
        vetoed = segments.mask & (log_ratio < math.log(rule.veto))
        mask = mask * (segments.expand(segments.pad(vetoed.float()).sum(1)) == 0)
    if rule.mode is not Mode.MASK:
        weights = weights.clamp(rule.lower if rule.mode is Mode.CLIP else None, rule.upper)
    weights = weights * segments.mask
    if rule.batch_normalize:
        # Every sample counts once where it has one weight, as in slime.
        by_token = weights.sum() / segments.mask_sums.sum().clamp_min(1)
        mean = by_token if rule.level is Level.TOKEN else segments.masked_mean(weights).mean()
        weights = weights / torch.where(mean > 0, mean, 1.0)
    return weights, mask


def _ratio(log_ratio: Tensor, segments: Segments, level: Level) -> Tensor:
    """The ratio that a token is judged by, [tokens]."""
    if level is not Level.TOKEN:
        mean = segments.masked_mean(log_ratio)
        log_ratio = segments.expand(mean * segments.mask_sums if level is Level.SEQUENCE else mean)
    return log_ratio.clamp(-SAFETY_BOUND, SAFETY_BOUND).exp()


def _inside(ratio: Tensor, lower: float, upper: float) -> Tensor:
    return (ratio >= lower) & (ratio <= upper)


Masks = list[Tensor]


def compute_mis_weights_with_cp(
    args: Any,
    *,
    pg_loss: Tensor,
    train_log_probs: Sequence[Tensor],
    rollout_log_probs: Sequence[Tensor],
    loss_masks: Sequence[Tensor],
    **_: Any,
) -> tuple[Tensor, Masks, dict[str, Tensor]]:
    """(loss weighted by `mis_weights`, masks without what was rejected, figures), by the tis_* and rs_* of `args`."""
    rule, segments = MisRule.of(args), Segments.of(loss_masks)
    train, rollout = segments.join(train_log_probs, "train_log_probs"), segments.join(rollout_log_probs, "rollout")
    weights, kept = mis_weights(train, rollout, segments, rule)
    ratio = _ratio(train - rollout, segments, rule.level)
    trained = segments.mask.float()
    figures = {
        "mis_tis_weight_before_bound": ratio,
        "mis_tis_weight_after_bound": weights,
        f"mis_tis_{rule.mode}_fraction_high": (ratio > rule.upper).float(),
        "mis_rejected_fraction": trained - kept,
    }
    if rule.mode is not Mode.TRUNCATE:
        figures[f"mis_tis_{rule.mode}_fraction_low"] = (ratio < rule.lower).float()
    return pg_loss * weights, segments.split(kept), figures


def icepop(train: Tensor, rollout: Tensor, low: float, high: float) -> Correction:
    """Weight = ratio where it is within [low, high], else 0."""
    ratio = (train - rollout).detach().exp()
    inside = _inside(ratio, low, high).float()
    return Correction(ratio * inside, 1 - inside, ratio)


def icepop_function(
    args: Any,
    *,
    pg_loss: Tensor,
    train_log_probs: Sequence[Tensor],
    rollout_log_probs: Sequence[Tensor],
    loss_masks: Sequence[Tensor],
    **_: Any,
) -> tuple[Tensor, Masks, dict[str, Tensor]]:
    """IcePop: tokens whose ratio is outside of [tis_clip_low, tis_clip] get weight 0, all others their ratio."""
    given = torch.cat(list(train_log_probs)), torch.cat(list(rollout_log_probs))
    return _weighted(icepop(*given, args.tis_clip_low, args.tis_clip), pg_loss, loss_masks)


def vanilla_tis_function(
    args: Any,
    *,
    pg_loss: Tensor,
    train_log_probs: Sequence[Tensor],
    rollout_log_probs: Sequence[Tensor],
    loss_masks: Sequence[Tensor],
    **_: Any,
) -> tuple[Tensor, Masks, dict[str, Tensor]]:
    """What `--use-tis` does alone: the ratio within [tis_clip_low, tis_clip]."""
    given = torch.cat(list(train_log_probs)), torch.cat(list(rollout_log_probs))
    return _weighted(truncated(*given, args.tis_clip_low, args.tis_clip), pg_loss, loss_masks)


def _weighted(
    found: Correction, pg_loss: Tensor, loss_masks: Sequence[Tensor]
) -> tuple[Tensor, Masks, dict[str, Tensor]]:
    return pg_loss * found.weight, list(loss_masks), found.figures
