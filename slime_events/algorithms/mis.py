"""Importance sampling between engine and trainer at the height of a token, a sequence or their geometric mean.

Weights for the loss and, apart from them, a mask that rejects tokens or whole samples (Liu and Li, "When speed kills
stability", 2025; the rules of slime's train_infer_mismatch_helper example). Masking single tokens is IcePop (2025).
"""

import enum
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from slime_events.algorithms.segments import Segments

AWAITS = "flags of MIS in the trainer"
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

    reject: rejection by `lower` and `upper` whatever the mode. veto: a sample with one trained token whose ratio is
    below it is rejected whole; None is off. batch_normalize: scale the weights of the trained tokens to mean 1.
    """

    level: Level = Level.TOKEN
    mode: Mode = Mode.TRUNCATE
    lower: float = 0.5
    upper: float = 2.0
    reject: bool = False
    veto: float | None = 1e-4
    batch_normalize: bool = False


def mis_weights(train: Tensor, rollout: Tensor, segments: Segments, rule: MisRule) -> tuple[Tensor, Tensor]:
    """Weights and mask (0.0 / 1.0) per token, [tokens] each, of log-probs [tokens]; zeros outside the loss mask."""
    log_ratio = (train - rollout).detach()
    weights = _at_level(log_ratio, segments, rule.level).clamp(-SAFETY_BOUND, SAFETY_BOUND).exp()
    inside = (weights >= rule.lower) & (weights <= rule.upper)
    mask = segments.mask.float()
    if rule.mode is Mode.MASK or rule.reject:
        mask = mask * inside
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


def _at_level(log_ratio: Tensor, segments: Segments, level: Level) -> Tensor:
    """The log ratio that a token is judged by, [tokens]."""
    if level is Level.TOKEN:
        return log_ratio
    mean = segments.masked_mean(log_ratio)
    return segments.expand(mean * segments.mask_sums if level is Level.SEQUENCE else mean)
