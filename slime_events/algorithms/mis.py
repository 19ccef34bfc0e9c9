"""Importance sampling between engine and trainer per token, per sequence or by the geometric mean of a sequence.

The results are weights for the loss and, separately, a mask that rejects tokens or whole samples (Liu and Li, "When
speed kills stability", 2025; the rules of slime's train_infer_mismatch_helper example). IcePop (2025) masks single
tokens.

The functions that take `args` are for `--custom-tis-function-path` and have slime's names and signature.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

import torch
from torch import Tensor

from schemas.doc import doc
from schemas.errors import ImpossibleCombination
from slime_events.algorithms.objective import Correction, truncated
from slime_events.algorithms.segments import Segments

SAFETY_BOUND = 20.0
"""Bound on |log ratio|, which keeps the product over a long sequence finite."""


class Level(enum.StrEnum):
    """Scope of a ratio: a token, the product over the sample, or the geometric mean of the sample's tokens."""

    TOKEN = "token"
    SEQUENCE = "sequence"
    GEOMETRIC = "geometric"


class Mode(enum.StrEnum):
    """Treatment of a weight out of bounds: cap it, clamp it on both sides, or keep it and reject the token."""

    TRUNCATE = "truncate"
    CLIP = "clip"
    MASK = "mask"


class MisArguments(Protocol):
    """The attributes of slime's `args` that `MisRule.of` reads."""

    tis_level: str
    tis_mode: str
    tis_lower_bound: float | None
    tis_upper_bound: float
    tis_batch_normalize: bool
    use_rs: bool
    rs_level: str
    rs_lower_bound: float | None
    rs_upper_bound: float | None
    rs_veto_threshold: float | None


class TisArguments(Protocol):
    """The attributes of slime's `args` that bound a ratio per token."""

    tis_clip: float
    tis_clip_low: float


@dataclass(frozen=True, slots=True)
class MisRule:
    """Weighting and rejection of tokens and samples. Each `reject_*` that is None equals that of the weights."""

    level: Annotated[Level, doc("Scope of the ratio that becomes the weight.")] = Level.TOKEN
    mode: Annotated[Mode, doc("Treatment of weights out of bounds.")] = Mode.TRUNCATE
    lower: Annotated[float, doc("Lower bound of the weight.")] = 0.5
    upper: Annotated[float, doc("Upper bound of the weight.")] = 2.0
    reject: Annotated[bool, doc("Reject ratios outside of the reject bounds, in every mode.")] = False
    veto: Annotated[float | None, doc("Reject a sample if any trained token's ratio is below; None: off.")] = 1e-4
    batch_normalize: Annotated[bool, doc("Scale the weights of the trained tokens to mean 1.")] = False
    reject_level: Annotated[Level | None, doc("Scope of the ratio that decides rejection.")] = None
    reject_lower: Annotated[float | None, doc("Lower bound of rejection.")] = None
    reject_upper: Annotated[float | None, doc("Upper bound of rejection.")] = None

    @classmethod
    def of(cls, args: MisArguments) -> MisRule:
        """Return the rule of slime's settings. The lower bound defaults to 1 / upper; a veto needs `use_rs`.

        Raises ImpossibleCombination if the lower bound is not below the upper bound.
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
    """Return weights and mask (0.0 / 1.0) per token, [tokens] each; both are zero outside the loss mask.

    train, rollout: log-probs [tokens].
    """
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
        # If a sample has a single weight, it counts once, as in slime.
        by_token = weights.sum() / segments.mask_sums.sum().clamp_min(1)
        mean = by_token if rule.level is Level.TOKEN else segments.masked_mean(weights).mean()
        weights = weights / torch.where(mean > 0, mean, 1.0)
    return weights, mask


def _ratio(log_ratio: Tensor, segments: Segments, level: Level) -> Tensor:
    """Return the ratio by which each token is judged, [tokens]."""
    if level is not Level.TOKEN:
        mean = segments.masked_mean(log_ratio)
        log_ratio = segments.expand(mean * segments.mask_sums if level is Level.SEQUENCE else mean)
    return log_ratio.clamp(-SAFETY_BOUND, SAFETY_BOUND).exp()


def _inside(ratio: Tensor, lower: float, upper: float) -> Tensor:
    return (ratio >= lower) & (ratio <= upper)


Masks = list[Tensor]


def compute_mis_weights_with_cp(
    args: MisArguments,
    *,
    pg_loss: Tensor,
    train_log_probs: Sequence[Tensor],
    rollout_log_probs: Sequence[Tensor],
    loss_masks: Sequence[Tensor],
    **_: object,
) -> tuple[Tensor, Masks, dict[str, Tensor]]:
    """Return (loss weighted by `mis_weights`, masks without rejected tokens, metrics), by `MisRule.of(args)`."""
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
    """Return weight = ratio if the ratio is within [low, high], else 0."""
    ratio = (train - rollout).detach().exp()
    inside = _inside(ratio, low, high).float()
    return Correction(ratio * inside, 1 - inside, ratio)


def icepop_function(
    args: TisArguments,
    *,
    pg_loss: Tensor,
    train_log_probs: Sequence[Tensor],
    rollout_log_probs: Sequence[Tensor],
    loss_masks: Sequence[Tensor],
    **_: object,
) -> tuple[Tensor, Masks, dict[str, Tensor]]:
    """Weight the loss by IcePop: a ratio outside of [tis_clip_low, tis_clip] becomes weight 0."""
    log_probs = torch.cat(list(train_log_probs)), torch.cat(list(rollout_log_probs))
    return _weighted(icepop(*log_probs, args.tis_clip_low, args.tis_clip), pg_loss, loss_masks)


def vanilla_tis_function(
    args: TisArguments,
    *,
    pg_loss: Tensor,
    train_log_probs: Sequence[Tensor],
    rollout_log_probs: Sequence[Tensor],
    loss_masks: Sequence[Tensor],
    **_: object,
) -> tuple[Tensor, Masks, dict[str, Tensor]]:
    """Weight the loss by the ratio clamped to [tis_clip_low, tis_clip], as `--use-tis` does by itself."""
    log_probs = torch.cat(list(train_log_probs)), torch.cat(list(rollout_log_probs))
    return _weighted(truncated(*log_probs, args.tis_clip_low, args.tis_clip), pg_loss, loss_masks)


def _weighted(
    correction: Correction, pg_loss: Tensor, loss_masks: Sequence[Tensor]
) -> tuple[Tensor, Masks, dict[str, Tensor]]:
    return pg_loss * correction.weight, list(loss_masks), correction.figures
