"""Advantages by sample, and how many samples a step effectively learns from. Needs no torch.

What `slime_events/algorithms/advantages.py` gives each token of a sample, averaged over the tokens that are trained on.
A KL in the reward (`kl_coef`) is left out: the reference model's log-probs are not in the log.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from slime_events.algorithms.estimators import estimator_of
from slime_events.core.config.algorithm import AlgorithmSettings

Mask = int | npt.NDArray[np.int8]
"""Trained tokens of a response: how many where all are, else its loss mask [response]."""
Floats = npt.NDArray[np.float64]
EPS = 1e-8
"""As in `slime_events/algorithms/advantages.py`, which stands on torch."""


def trained_tokens(mask: Mask) -> int:
    """How many tokens of a response are trained on."""
    return mask if isinstance(mask, int) else int((mask != 0).sum())


def sample_advantages(rewards: Sequence[float], masks: Sequence[Mask], settings: AlgorithmSettings) -> Floats:
    """The mean advantage over each sample's trained tokens, float64 [samples]; 0 where none is trained on.

    rewards: [samples], of a whole step, normalised over their groups as the settings have it.
    """
    values = np.asarray(rewards, dtype=np.float64)
    tokens = np.array([trained_tokens(mask) for mask in masks], dtype=np.float64)
    firsts, seconds = tokens, tokens
    discount = estimator_of(settings).discount(settings)
    if discount != 1.0:
        sums = np.array([_discounts(mask, discount) for mask in masks]).reshape(-1, 2)
        firsts, seconds = sums[:, 0], sums[:, 1]
    means = values * firsts / np.maximum(tokens, 1.0)
    if not settings.normalize_advantages:
        return means
    count = tokens.sum()
    mean = float((values * firsts).sum() / max(count, 1.0))
    variance = max(0.0, float((values**2 * seconds).sum() - count * mean**2) / max(count - 1.0, 1.0))
    scale = 1.0 if count < 2 else 1.0 / np.sqrt(variance + EPS)
    whitened: Floats = np.where(tokens > 0, (means - mean) * scale, 0.0)
    return whitened


def _discounts(mask: Mask, gamma: float) -> tuple[float, float]:
    """Sums of gamma^(distance to the last trained token), and of their squares, over the trained tokens."""
    places = np.arange(mask) if isinstance(mask, int) else np.flatnonzero(mask)
    if not len(places):
        return 0.0, 0.0
    factors = gamma ** (places[-1] - places).astype(np.float64)
    return float(factors.sum()), float((factors**2).sum())


def advantage_weights(advantages: Floats, masks: Sequence[Mask], settings: AlgorithmSettings) -> Floats:
    """What each sample counts for in a policy gradient: |advantage|, times trained tokens under a per-token loss."""
    if not settings.calculate_per_token_loss:
        return np.abs(advantages)
    return np.abs(advantages) * np.array([trained_tokens(mask) for mask in masks], dtype=np.float64)


def effective_sample_size(weights: Floats) -> float:
    """Kish's effective sample size, (sum w)^2 / sum w^2: between 1 and the number of samples; 0 where no weight is.

    As many equally weighted samples would give a mean of the same variance (Kish, Survey Sampling, 1965, 11.7; for
    importance weights: Owen, Monte Carlo theory, methods and examples, 2013, 9.3).
    """
    squares = float((weights**2).sum())
    return float(weights.sum()) ** 2 / squares if squares > 0 else 0.0
