"""The advantage of each sample of a step, as far as it follows from the rewards of its batch. Numpy, no torch.

The trainer computes advantages per token (`slime_events/algorithms`); a test compares the two. Questions about a log
need only a sample's first, last and mean token over many steps, and are answered before torch could be imported. A KL
penalty (`kl_coef`, `use_opd`) is left out: the ranks' log-probs of a reference or teacher are not in the log.
"""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt

from schemas.doc import doc
from slime_events.algorithms.estimators import estimator_of
from slime_events.core.config.algorithm import AlgorithmSettings

Mask = int | npt.NDArray[np.int8]
"""Trained tokens of a response: their number if all are trained on, else the loss mask [response], 1 = trained on."""
Floats = npt.NDArray[np.float64]
EPS = 1e-8
"""Copy of the constant in `slime_events/algorithms/advantages.py`, which needs torch."""


class Advantages(NamedTuple):
    """Advantages of a step's samples, float64 [samples] each. 0 for a sample without trained tokens."""

    first: Annotated[Floats, doc("of the first trained token")]
    last: Annotated[Floats, doc("of the last trained token")]
    mean: Annotated[Floats, doc("mean over the trained tokens")]


def trained_tokens(mask: Mask) -> int:
    """Return the number of a response's tokens that are trained on."""
    return mask if isinstance(mask, int) else int((mask != 0).sum())


def has_kl_penalty(settings: AlgorithmSettings) -> bool:
    """Return whether the trainer subtracts a penalty from the advantages that the log does not hold."""
    return settings.use_opd or (estimator_of(settings).takes_kl and settings.kl_coef != 0)


def has_critic(settings: AlgorithmSettings) -> bool:
    """Return whether advantages depend on a critic's values, which the log does not hold."""
    return estimator_of(settings).needs_values


def sample_advantages(
    rewards: Sequence[float],
    masks: Sequence[Mask],
    settings: AlgorithmSettings,
    credits: Sequence[npt.NDArray[np.float32] | None] | None = None,
) -> Advantages:
    """Return the advantages of a whole step.

    rewards: [samples], normalised over groups as in the batch. credits: per sample, factors of its tokens' advantages
    [response]; None is 1.
    """
    values = np.asarray(rewards, dtype=np.float64)
    tokens = np.array([trained_tokens(mask) for mask in masks], dtype=np.float64)
    trained = np.where(tokens > 0, values, 0.0)
    first, last, sums, squares = trained, trained, tokens, tokens
    discount, credits = estimator_of(settings).discount(settings), credits or [None] * len(masks)
    if discount != 1.0 or any(credit is not None for credit in credits):
        factors = np.array([_factors(mask, discount, credit) for mask, credit in zip(masks, credits, strict=True)])
        factors = factors.reshape(-1, 4)
        first, last, sums, squares = trained * factors[:, 0], trained * factors[:, 1], factors[:, 2], factors[:, 3]
    advantages = Advantages(first, last, values * sums / np.maximum(tokens, 1.0))
    if not settings.normalize_advantages:
        return advantages
    # As `masked_whiten`: over all trained tokens of the step, with unbiased variance.
    count = tokens.sum()
    mean = float((values * sums).sum() / max(count, 1.0))
    variance = max(0.0, float((values**2 * squares).sum() - count * mean**2) / max(count - 1.0, 1.0))
    scale = 1.0 if count < 2 else 1.0 / np.sqrt(variance + EPS)
    return Advantages(*(np.where(tokens > 0, (part - mean) * scale, 0.0) for part in advantages))


def _factors(mask: Mask, gamma: float, credit: npt.NDArray[np.float32] | None) -> tuple[float, float, float, float]:
    """Return, for gamma^(distance to the last trained token) * credit: its value at the first trained token, at the
    last, its sum, and the sum of its squares.
    """
    places = np.arange(mask) if isinstance(mask, int) else np.flatnonzero(mask)
    if not len(places):
        return 0.0, 0.0, 0.0, 0.0
    factors = gamma ** (places[-1] - places).astype(np.float64)
    if credit is not None:
        factors *= credit[places]
    return float(factors[0]), float(factors[-1]), float(factors.sum()), float((factors**2).sum())
