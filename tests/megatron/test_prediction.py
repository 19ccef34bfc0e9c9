"""The multi-token prediction layer: its loss and each gradient equal plain torch, and no other gradient changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from actors.megatron.families.registry import read_architecture
from actors.megatron.prediction_settings import check_prediction
from schemas.errors import CheckpointMismatch, ImpossibleCombination, TrainerError
from slime_events.core.config.trainer import TrainerSettings
from tests.megatron.gradients import gradients_of
from tests.megatron.plain_prediction import FILE, PlainPrediction, make_prediction_model
from tests.megatron.prediction_ranks import TWO
from tests.megatron.test_commanded_step import pass_of, step
from tests.megatron.test_pipeline import check
from tests.megatron.tiny import make_batch
from tests.megatron.two_processes import RankPair

Trainer = Callable[..., Any]
FAMILIES = ("glm4_moe", "deepseek_v3")
COPIES = ("embed_tokens.weight", "shared_head.head.weight")
MTP: dict[str, Any] = {"enable_mtp_training": True}
PACKED = {"clip_grad": 0.0, "use_dynamic_batch_size": True, "max_tokens_per_gpu": 60}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model of each family, under its name."""
    folder = tmp_path_factory.mktemp("prediction")
    for family in FAMILIES:
        make_prediction_model(folder / family, family)
    return folder


def close(mine: torch.Tensor, other: torch.Tensor, name: str) -> None:
    torch.testing.assert_close(mine, other, atol=2e-6, rtol=2e-5, msg=lambda text: f"{name}: {text}")


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_each_gradient_equal_plain_torch(family: str, models: Path, trainer: Trainer) -> None:
    folder, batch = models / family, make_batch(zero=True)
    loss, expected = PlainPrediction(folder).gradients(batch, 0.3)
    with trainer(folder, **PACKED) as rank:
        without = rank.train(batch).metrics
        expected |= gradients_of(rank)
        before = {name: tensor.clone() for name, tensor in rank.export_weights()}
    with trainer(folder, **PACKED, **MTP, mtp_loss_scaling_factor=0.3) as rank:
        original = load_file(folder / FILE)
        for name, tensor in rank.export_weights():
            assert torch.equal(tensor, original[name]), name
        assert {name for name, _ in rank.export_weights()} == {n for n in original if not n.endswith(COPIES[1])} - {
            n for n in original if n.endswith(COPIES[0]) and "layers" in n
        }
        metrics = rank.train(batch).metrics
        gradients = gradients_of(rank)
        after = {name: tensor.clone() for name, tensor in rank.export_weights()}
    assert metrics["mtp_loss"] == pytest.approx(loss, abs=1e-5)
    assert "mtp_loss" not in without
    assert metrics["loss"] == pytest.approx(without["loss"], abs=1e-6)
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        close(gradients[name], gradient, name)
    for name, tensor in before.items():
        close(after[name], tensor, name)
    moved = [name for name in after.keys() - before.keys() if not torch.equal(after[name], original[name])]
    assert len(moved) > 20


@pytest.fixture(scope="module")
def two_ranks(models: Path, rank_pair: RankPair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what two ranks wrote."""
    out = tmp_path_factory.mktemp("ranks")
    rank_pair.run("tests.megatron.prediction_ranks", models, out)
    return out


@pytest.mark.real
@pytest.mark.parametrize("name", TWO)
def test_two_ranks_equal_one(name: str, models: Path, two_ranks: Path, tmp_path: Path) -> None:
    check(name, TWO[name], models, two_ranks, tmp_path, ranks=2)


@pytest.mark.parametrize(
    ("change", "layers", "reason"),
    [
        ({}, 0, "num_nextn_predict_layers of the checkpoint is 0"),
        ({}, 2, "num_nextn_predict_layers of the checkpoint is 2"),
        ({"pipeline_model_parallel_size": 2}, 1, "pipeline-model-parallel-size 2"),
        ({"context_parallel_size": 2}, 1, "context-parallel-size 2"),
        ({"megatron": {"moe_router_bias_update_rate": 0.1}}, 1, "moe-router-bias-update-rate 0.1"),
    ],
)
def test_what_cannot_train_the_layer_is_refused(change: dict[str, Any], layers: int, reason: str, models: Path) -> None:
    architecture = replace(read_architecture(models / "glm4_moe"), prediction_layers=layers)
    with pytest.raises(ImpossibleCombination, match=reason):
        check_prediction(TrainerSettings(**MTP, **change), architecture)


def test_flags_that_state_the_layers_are_compared(models: Path) -> None:
    architecture = read_architecture(models / "glm4_moe")
    architecture.check_flags({"mtp_num_layers": 1})
    with pytest.raises(CheckpointMismatch, match="--mtp-num-layers 2"):
        architecture.check_flags({"mtp_num_layers": 2})
    with pytest.raises(CheckpointMismatch, match="--mtp-num-layers 1"):
        replace(architecture, prediction_layers=0).check_flags({"mtp_num_layers": 1})


def test_the_layer_is_passed_in_updates_alone(models: Path, trainer: Trainer) -> None:
    """Log-probs, of the policy and of a reference, do not need it; a client's passes cannot train it."""
    algorithm = {"use_kl_loss": True, "kl_loss_coef": 0.1}
    folder, batch = models / "glm4_moe", make_batch()
    with trainer(folder, algorithm, **PACKED, **MTP, ref_load=str(folder)) as rank:
        passes: list[bool] = []
        layer = rank.trainee.model.module.mtp
        layer.register_forward_hook(lambda *_: passes.append(torch.is_grad_enabled()))
        rank.trainee.score(batch.samples, range(len(batch.samples)), 1.0)
        assert passes == []
        rank.train(batch)
        assert all(passes)
        assert len(passes) == len(rank.trainee.split(batch.samples, range(len(batch.samples)))[0])
        with pytest.raises(TrainerError, match="enable_mtp_training"):
            rank.train(step(0, pass_of("ppo")))
