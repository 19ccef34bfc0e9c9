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
from tests.megatron.pipeline_ranks import Case
from tests.megatron.plain_prediction import COPIES, FAMILIES, FILE, PlainPrediction, make_prediction_model
from tests.megatron.prediction_ranks import MORE, TWO
from tests.megatron.prediction_ranks_of_four import FOUR
from tests.megatron.recomputing import FULL, recomputing
from tests.megatron.test_commanded_step import pass_of, step
from tests.megatron.test_pipeline import check
from tests.megatron.tiny import make_batch
from tests.megatron.two_processes import RankPair, run_ranks

Trainer = Callable[..., Any]
LITE = "glm4_moe_lite"
MTP: dict[str, Any] = {"enable_mtp_training": True}
PACKED = {"clip_grad": 0.0, "use_dynamic_batch_size": True, "max_tokens_per_gpu": 60}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model of each family, under its name."""
    folder = tmp_path_factory.mktemp("prediction")
    for family in (*FAMILIES, LITE):
        make_prediction_model(folder / family, family)
    return folder


def close(mine: torch.Tensor, other: torch.Tensor, name: str) -> None:
    torch.testing.assert_close(mine, other, atol=2e-6, rtol=2e-5, msg=lambda text: f"{name}: {text}")


@pytest.mark.parametrize("family", [*FAMILIES, pytest.param(LITE, marks=pytest.mark.soak)])
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
    assert len(moved) > 15


def compare(name: str, case: Case, models: Path, out: Path, alone: Path, ranks: int = 2) -> None:
    """Compare the results of several ranks in `out` with those of one, which works in the folder `alone`."""
    check(name, case, models, out, alone, ranks=ranks)
    if "use_distributed_optimizer" in case.settings.get("megatron", {}):
        return  # a rank has a part of the gradients, so only weights were compared
    ours, theirs = load_file(out / f"{name}-{ranks}.gradients"), load_file(alone / f"{name}-1.gradients")
    for tensor, gradient in theirs.items():
        assert (ours[tensor] - gradient).norm() <= 1e-5 * gradient.norm(), tensor


@pytest.mark.real
def test_two_ranks_equal_one(models: Path, rank_pair: RankPair, tmp_path: Path) -> None:
    (out := tmp_path / "ranks").mkdir()
    rank_pair.run("tests.megatron.prediction_ranks", models, out)
    for name, case in TWO.items():
        compare(name, case, models, out, tmp_path)


@pytest.mark.soak
@pytest.mark.real
@pytest.mark.parametrize("group", MORE)
def test_two_ranks_of_each_layout_equal_one(group: str, models: Path, rank_pair: RankPair, tmp_path: Path) -> None:
    (out := tmp_path / group).mkdir()
    rank_pair.run("tests.megatron.prediction_ranks_more", models, out)
    for name, case in MORE[group].items():
        compare(name, case, models, out, tmp_path / f"alone {name}")


@pytest.mark.soak
@pytest.mark.parametrize("group", FOUR)
def test_four_ranks_equal_one(group: str, models: Path, tmp_path: Path) -> None:
    out = run_ranks(4, "tests.megatron.prediction_ranks_of_four", models, tmp_path / group)
    for name, case in FOUR[group].items():
        compare(name, case, models, out, tmp_path / f"alone {name}", ranks=4)


@pytest.mark.parametrize(
    ("change", "layers", "reason"),
    [
        ({}, 0, "num_nextn_predict_layers of the checkpoint is 0"),
        ({}, 2, "num_nextn_predict_layers of the checkpoint is 2"),
        ({"megatron": {"moe_router_bias_update_rate": 0.1}}, 1, "moe-router-bias-update-rate 0.1"),
        ({"megatron": {"moe_aux_loss_coeff": [0.0, 0.1]}}, 1, "moe-aux-loss-coeff"),
        ({"megatron": {"moe_z_loss_coeff": 0.1}}, 1, "moe-z-loss-coeff 0.1"),
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
        layer = rank.trainee.model.module.mtp.only
        layer.register_forward_hook(lambda *_: passes.append(torch.is_grad_enabled()))
        rank.trainee.score(batch.samples, range(len(batch.samples)), 1.0)
        assert passes == []
        rank.train(batch)
        assert all(passes)
        assert len(passes) == len(rank.trainee.split(batch.samples, range(len(batch.samples)))[0])
        with pytest.raises(TrainerError, match="enable_mtp_training"):
            rank.train(step(0, pass_of("ppo")))


def gradients_with(folder: Path, trainer: Trainer, algorithm: dict[str, Any], settings: dict[str, Any]) -> Any:
    """Return the gradients of the last update of a step, and its metrics."""
    with trainer(folder, algorithm, **PACKED, **MTP, **settings) as rank:
        metrics = rank.train(make_batch(zero=True)).metrics
        return gradients_of(rank), metrics


@pytest.mark.soak
@pytest.mark.parametrize(
    "settings",
    [{"log_probs_chunk_size": 3}, {"recompute_loss_function": True}, {"megatron": FULL}, {"skip_zero_advantage": True}],
)
def test_savings_of_memory_change_no_gradient(settings: dict[str, Any], models: Path, trainer: Trainer) -> None:
    expected, figures = gradients_with(models / "deepseek_v3", trainer, {}, {"skip_zero_advantage": False})
    with recomputing():
        gradients, metrics = gradients_with(models / "deepseek_v3", trainer, {}, settings)
    assert metrics["mtp_loss"] == pytest.approx(figures["mtp_loss"], rel=1e-6)
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        close(gradients[name], gradient, name)


@pytest.mark.soak
def test_updates_of_a_step_have_their_own_tokens(models: Path, trainer: Trainer) -> None:
    """The loss of an update is the mean over its samples, that of the step over all."""
    folder, batch = models / "glm4_moe", make_batch(zero=True)
    plain = PlainPrediction(folder)
    losses = torch.cat([plain.losses(sample) for sample in batch.samples])
    half = replace(batch, samples=batch.samples[8:])
    _, expected = PlainPrediction(folder).gradients(half, 0.2)
    with trainer(folder, **PACKED, **MTP, lr=0.0, global_batch_size=8) as rank:  # the weights stay
        metrics = rank.train(batch).metrics
        gradients = gradients_of(rank)
    assert metrics["optimizer_steps"] == 2
    assert metrics["mtp_loss"] == pytest.approx(float(losses.detach().mean()), abs=1e-5)
    for name, gradient in expected.items():
        close(gradients[name], gradient, name)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("lists", "moves"), [("only_train_params_name_list", True), ("freeze_params_name_list", False)]
)
def test_the_layer_can_be_trained_alone_or_not_at_all(lists: str, moves: bool, models: Path, trainer: Trainer) -> None:
    with trainer(models / "glm4_moe", **PACKED, **MTP, **{lists: [r"mtp\.layers\.0"]}) as rank:
        before = {name: tensor.clone() for name, tensor in rank.export_weights()}
        metrics = rank.train(make_batch()).metrics
        changed = {name for name, tensor in rank.export_weights() if not torch.equal(tensor, before[name])}
    of_layer = {name for name in before if name.startswith("model.layers.3.")}
    assert metrics["mtp_loss"] > 0
    assert changed & of_layer == (changed if moves else set())
    assert len(changed) > 20


@pytest.mark.soak
def test_a_critic_has_no_such_layer(models: Path, trainer: Trainer) -> None:
    ppo = {"advantage_estimator": "ppo", "num_critic_only_steps": 1}
    with trainer(models / "glm4_moe", ppo, **PACKED, **MTP) as rank:
        assert not hasattr(rank.trainee.critic.model.module, "mtp")
        before = rank.weights_digest()
        assert "mtp_loss" not in rank.train(make_batch()).metrics
        assert rank.weights_digest() == before
        assert rank.train(make_batch(1)).metrics["mtp_loss"] > 0
