"""The advantages that the read model gives are the trainer's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from slime_events.algorithms.advantages import compute_advantages
from slime_events.algorithms.estimators import ESTIMATORS
from slime_events.analysis.lineage.advantages import TrainedSample, make_advantages
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.model.advantages import sample_advantages

REWARDS = [0.5, -1.25, 0.0, 2.0]
CREDITS = [np.array(credit, np.float32) for credit in ([0.25, 0.5, 1], [0, 0.5, 0, 1, 1], [1, 1], [1, 1])]
MASKS = [np.array(mask, np.int8) for mask in ([1, 1, 1], [0, 1, 0, 1, 1], [0, 0], [1, 0])]


@pytest.mark.parametrize("estimator", sorted(name for name, rule in ESTIMATORS.items() if not rule.needs_values))
@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("credits", [None, CREDITS])
def test_they_are_what_the_trainer_computes(estimator: Any, whiten: bool, gamma: float, credits: Any) -> None:
    settings = AlgorithmSettings(advantage_estimator=estimator, normalize_advantages=whiten, gamma=gamma)
    masks = [torch.from_numpy(mask) for mask in MASKS]
    log_probs = [torch.zeros(len(mask)) for mask in masks]
    credits_ = credits and [torch.from_numpy(credit) for credit in credits]
    theirs, _ = compute_advantages(torch.tensor(REWARDS), log_probs, None, masks, settings, token_credit=credits_)
    ours = sample_advantages(REWARDS, MASKS, settings, credits)
    for *own, computed, mask in zip(*ours, theirs, masks, strict=True):
        trained = computed[mask != 0].tolist()
        expected = (trained[0], trained[-1], sum(trained) / len(trained)) if trained else (0.0, 0.0, 0.0)
        assert tuple(own) == pytest.approx(expected, abs=1e-6)
    named = make_advantages(list(map(TrainedSample, "abcd", REWARDS, MASKS)), settings)
    assert named.keys() == set("abd"), "a sample without a trained token has none"
    assert all(advantage.left_out == () for advantage in named.values())


def test_those_of_a_critic_are_not_given() -> None:
    settings = AlgorithmSettings(advantage_estimator="ppo")
    assert make_advantages([TrainedSample("a", 1.0, MASKS[0])], settings) == {}


def test_what_needs_log_probs_is_named() -> None:
    settings = AlgorithmSettings(
        advantage_estimator="reinforce_plus_plus_baseline", kl_coef=0.1, normalize_advantages=True
    )
    advantages = make_advantages(list(map(TrainedSample, "abcd", REWARDS, MASKS)), settings)
    assert [advantage.left_out for advantage in advantages.values()] == [("kl", "whitening")] * 3
    assert [advantage.first for advantage in advantages.values()] == [0.5, -1.25, 2.0]
