"""Replayed experts with auxiliary losses, moving biases and grouped experts: each token has the replayed ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.megatron.gradients import gradients_of
from tests.megatron.routing_ranks import chosen_batch
from tests.megatron.test_balance import KINDS, SEVERAL, Logits
from tests.megatron.test_expert_bias import BIAS, biases_of
from tests.megatron.test_grouped_experts import GROUPED
from tests.megatron.test_routes import check_gradients, choices_of
from tests.megatron.tiny import MOVING_BIAS, make_model

Trainer = Callable[..., Any]
REPLAY = {"use_rollout_routing_replay": True, **SEVERAL}


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_of_the_scores_and_gradients_of_the_given_experts(
    kind: str, tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags, metric, loss_of = KINDS[kind]
    model = make_model(tmp_path, "qwen3_moe", tied=False)
    batch, logits, values = chosen_batch(tmp_path), Logits(model), list[float]()
    with trainer(tmp_path, megatron=flags | GROUPED, **REPLAY) as rank:
        choices = choices_of(rank, batch)
        for sample in batch.samples:
            if sample.experts is not None:
                choices[sample.sample][: len(sample.experts)] = sample.experts
        metrics, ours = rank.train(batch).metrics, gradients_of(rank)

    def further() -> Tensor:
        losses = torch.stack([loss_of(layer, False, 2) for layer in logits.of_layers])
        values.append(float(losses.mean()))
        return 0.3 * losses.sum()

    check_gradients(ours, model, batch, choices, monkeypatch, further)
    assert metrics[metric] == pytest.approx(values[0], rel=1e-5)


def test_the_bias_moves_by_the_load_of_the_given_experts(tmp_path: Path, trainer: Trainer) -> None:
    make_model(tmp_path, "glm4_moe", tied=False)
    batch = chosen_batch(tmp_path)
    with trainer(tmp_path, **REPLAY, **MOVING_BIAS) as rank:
        own, before = choices_of(rank, batch), biases_of(rank)
        routes = rank.trainee.routes
        rank.trainee.scores_of(rank.trainee.model, batch.samples, range(16), 1.0, routing=routes.recording)
        replayed = dict(routes._choices)
        rank.train(batch)
        after = biases_of(rank)
    differ = 0
    for layer, (name, bias) in enumerate(before.items(), 1):
        assert name == f"model.layers.{layer}.mlp{BIAS}"
        loads = [
            np.bincount(np.concatenate([ids[:, layer - 1] for ids in choices.values()]).ravel(), minlength=len(bias))
            for choices in (replayed, own)
        ]
        moves = [torch.from_numpy(np.sign(load.mean() - load)).float() * 0.01 for load in loads]
        torch.testing.assert_close(after[name], bias + moves[0], atol=1e-7, rtol=0)
        differ += int((moves[0] != moves[1]).sum())
    assert differ, "the engine's experts have another load"
