"""Advantages by sample, beside those that the trainer computes token by token."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slime_events.algorithms.advantages import compute_advantages
from slime_events.analysis.rescore.compare import advantage_weights, effective_sample_size
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.model.advantages import sample_advantages

REWARDS = [1.5, -0.5, 0.25, -1.25]
MASKS = [5, np.array([0, 1, 1, 0, 1, 0], np.int8), 1, np.array([0, 0], np.int8)]


@pytest.mark.parametrize("estimator", ["grpo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"])
@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("whitened", [False, True])
def test_means_of_the_trainers_advantages(estimator: str, gamma: float, whitened: bool) -> None:
    settings = AlgorithmSettings(
        advantage_estimator=estimator,  # type: ignore[arg-type]
        gamma=gamma,
        normalize_advantages=whitened,
    )
    masks = [torch.ones(mask) if isinstance(mask, int) else torch.from_numpy(mask) for mask in MASKS]
    log_probs = [torch.zeros(len(mask)) for mask in masks]
    tokens, _ = compute_advantages(torch.tensor(REWARDS), log_probs, None, masks, settings)
    expected = [float(row[mask != 0].mean()) if mask.any() else 0.0 for row, mask in zip(tokens, masks, strict=True)]
    np.testing.assert_allclose(sample_advantages(REWARDS, MASKS, settings).mean, expected, rtol=1e-5, atol=1e-6)


def test_weights_by_rollout_and_by_token() -> None:
    advantages = np.array([2.0, -1.0, 0.0, 3.0])
    assert advantage_weights(advantages, MASKS, AlgorithmSettings()).tolist() == [2, 1, 0, 3]
    per_token = AlgorithmSettings(calculate_per_token_loss=True)
    assert advantage_weights(advantages, MASKS, per_token).tolist() == [10, 3, 0, 0]


def test_the_effective_sample_size() -> None:
    assert effective_sample_size(np.ones(7)) == pytest.approx(7)
    assert effective_sample_size(np.array([4.0, 0.0, 0.0])) == pytest.approx(1)
    assert effective_sample_size(np.array([1.0, 1.0, 2.0])) == pytest.approx(16 / 6)
    assert effective_sample_size(np.zeros(3)) == 0
