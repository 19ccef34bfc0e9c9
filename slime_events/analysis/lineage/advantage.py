"""The advantage of each sample of a step, as far as it follows from the rewards that were sealed. Needs no torch.

The trainer's own formulas are in `slime_events/algorithms/advantages.py`; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from slime_events.algorithms.estimators import estimator_of
from slime_events.analysis.lineage.facts import Advantage
from slime_events.core.config.algorithm import AlgorithmSettings

EPS = 1e-8
"""As in `slime_events/algorithms/advantages.py`, which needs torch."""


def advantages(
    rewards: Sequence[float], masks: Sequence[npt.NDArray[np.int8]], settings: AlgorithmSettings
) -> list[Advantage | None]:
    """Of each sample of a step; None for one without a trained token.

    rewards: as sealed (normalised over their groups), masks: int8 [response], 1 = trained on, both of the whole step.
    """
    estimator = settings.advantage_estimator
    kl = estimator_of(settings).takes_kl and settings.kl_coef != 0
    left_out = (("kl", *(("whitening",) if settings.normalize_advantages else ()))) if kl else ()
    values = [_values(reward, mask, settings) for reward, mask in zip(rewards, masks, strict=True)]
    if settings.normalize_advantages and not kl:
        values = _whitened(values)
    return [
        Advantage(estimator=estimator, first=float(own[0]), last=float(own[-1]), left_out=left_out)
        if len(own)
        else None
        for own in values
    ]


def _values(reward: float, mask: npt.NDArray[np.int8], settings: AlgorithmSettings) -> npt.NDArray[np.float32]:
    """Of the trained tokens, in order."""
    places = np.flatnonzero(mask)
    values = np.full(len(places), reward, np.float32)
    discount = estimator_of(settings).discount(settings)
    if discount != 1.0 and len(places):
        values *= np.power(discount, places[-1] - places).astype(np.float32)
    return values


def _whitened(values: Sequence[npt.NDArray[np.float32]]) -> list[npt.NDArray[np.float32]]:
    """As `masked_whiten`: over all trained tokens of the step, with unbiased variance."""
    count = sum(map(len, values))
    if not count:
        return list(values)
    flat = np.concatenate(values).astype(np.float64)
    mean = flat.sum() / count
    variance = max(0.0, (np.square(flat).sum() - count * mean * mean) / max(count - 1, 1))
    scale = 1.0 if count < 2 else 1.0 / np.sqrt(variance + EPS)
    return [((own - mean) * scale).astype(np.float32) for own in values]
