"""The advantage of each sample of a step, as far as it follows from the rewards of its batch. Numpy, no torch.

The trainer computes advantages per token (`slime_events/algorithms`); a test compares the two. Questions asked of a
log need only a sample's first, last and mean token, over many steps, and answer before torch is imported.
A KL penalty (`kl_coef`, `use_opd`) is left out: the log-probs of a reference or a teacher in the ranks are not in the
log.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from slime_events.algorithms.estimators import estimator_of
from slime_events.core.config.algorithm import AlgorithmSettings

Mask = int | npt.NDArray[np.int8]
"""Trained tokens of a response: how many where all are, else its loss mask [response], 1 = trained on."""
Floats = npt.NDArray[np.float64]
EPS = 1e-8
"""As in `slime_events/algorithms/advantages.py`, which needs torch."""


class Advantages(NamedTuple):
    """Of a step's samples, float64 [samples] each: of the first trained token, of the last, and the mean over all of
    them; 0 where none is trained on.
    """

    first: Floats
    last: Floats
    mean: Floats


def trained_tokens(mask: Mask) -> int:
    """Number of tokens of a response that are trained on."""
    return mask if isinstance(mask, int) else int((mask != 0).sum())


def has_kl_penalty(settings: AlgorithmSettings) -> bool:
    """Whether the trainer takes a penalty from the advantages that rewards alone do not give."""
    return settings.use_opd or (estimator_of(settings).takes_kl and settings.kl_coef != 0)


def has_critic(settings: AlgorithmSettings) -> bool:
    """Whether the trainer takes a critic's values from the advantages, which are not in the log."""
    return estimator_of(settings).needs_values


def sample_advantages(
    rewards: Sequence[float],
    masks: Sequence[Mask],
    settings: AlgorithmSettings,
    credits: Sequence[npt.NDArray[np.float32] | None] | None = None,
) -> Advantages:
    """rewards: [samples], of a whole step, as its batch has them (normalised over their groups). credits: of each, what
    its tokens' advantages are multiplied by [response]; None is 1.
    """
    values = np.asarray(rewards, dtype=np.float64)
    tokens = np.array([trained_tokens(mask) for mask in masks], dtype=np.float64)
    trained = np.where(tokens > 0, values, 0.0)
    first, last, sums, squares = trained, trained, tokens, tokens
    discount, credits = estimator_of(settings).discount(settings), credits or [None] * len(masks)
    if discount != 1.0 or any(credit is not None for credit in credits):
        factors = np.array([_factors(mask, discount, one) for mask, one in zip(masks, credits, strict=True)])
        factors = factors.reshape(-1, 4)
        first, last, sums, squares = trained * factors[:, 0], trained * factors[:, 1], factors[:, 2], factors[:, 3]
    found = Advantages(first, last, values * sums / np.maximum(tokens, 1.0))
    if not settings.normalize_advantages:
        return found
    # As `masked_whiten`: over all trained tokens of the step, with unbiased variance.
    count = tokens.sum()
    mean = float((values * sums).sum() / max(count, 1.0))
    variance = max(0.0, float((values**2 * squares).sum() - count * mean**2) / max(count - 1.0, 1.0))
    scale = 1.0 if count < 2 else 1.0 / np.sqrt(variance + EPS)
    return Advantages(*(np.where(tokens > 0, (part - mean) * scale, 0.0) for part in found))


def _factors(mask: Mask, gamma: float, credit: npt.NDArray[np.float32] | None) -> tuple[float, float, float, float]:
    """gamma^(distance to the last trained token) * credit: of the first one, of the last, and the sums of it and of its
    squares over all.
    """
    places = np.arange(mask) if isinstance(mask, int) else np.flatnonzero(mask)
    if not len(places):
        return 0.0, 0.0, 0.0, 0.0
    factors = gamma ** (places[-1] - places).astype(np.float64)
    if credit is not None:
        factors *= credit[places]
    return float(factors[0]), float(factors[-1]), float(factors.sum()), float((factors**2).sum())
