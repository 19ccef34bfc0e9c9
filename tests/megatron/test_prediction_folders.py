"""Folders of a run that trains a multi-token prediction layer: versions, checkpoints, conversions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from actors.megatron.convert import Conversion, convert
from actors.megatron.families.registry import read_architecture
from actors.megatron.prediction_settings import check_stored_prediction
from actors.megatron.rank import TrainerRank
from schemas.errors import CheckpointMismatch
from slime_events.app.demo.settings import prepare_demo
from slime_events.core.config.toml import to_toml
from storage.weights.folder_formats import FolderFormat
from storage.weights.store import WeightStore
from tests.cli.invoke import command
from tests.megatron.plain_prediction import COPIES, FAMILIES, FILE, PREFIX_OF_MIMO, make_prediction_model
from tests.megatron.test_formats import same_files, save_as_megatron_lm
from tests.megatron.tiny import make_batch

Trainer = Callable[..., Any]
MTP: dict[str, Any] = {"enable_mtp_training": True, "use_dynamic_batch_size": True, "max_tokens_per_gpu": 60}
FROZEN = {**MTP, "freeze_params_name_list": ["decoder"]}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model of each family, under its name, and one without the layer."""
    folder = tmp_path_factory.mktemp("prediction")
    for family in FAMILIES:
        make_prediction_model(folder / family, family)
        (folder / family / "tokenizer.json").write_text("{}")
    without = folder / "without"
    without.mkdir()
    tensors = load_file(folder / "glm4_moe" / FILE)
    save_file({name: tensor for name, tensor in tensors.items() if "layers.3." not in name}, without / FILE)
    (without / "config.json").write_bytes((folder / "glm4_moe" / "config.json").read_bytes())
    return folder


def of_layer(tensors: dict[str, torch.Tensor], folder: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of the layer that are trained."""
    architecture = read_architecture(folder)
    is_mimo = architecture.model_class == "MiMoForCausalLM"
    prefix = PREFIX_OF_MIMO if is_mimo else f"model.layers.{architecture.num_layers}."
    return {n: t for n, t in tensors.items() if n.startswith(prefix) and not n.endswith(COPIES)}


def digests(rank: TrainerRank) -> list[str]:
    return [rank.weights_digest(), rank.optimizer_digest()]


@pytest.mark.parametrize(
    ("family", "bf16"),
    [("glm4_moe", True), *(pytest.param(family, False, marks=pytest.mark.soak) for family in ("deepseek_v3", "mimo"))],
)
def test_versions_have_the_trained_layer(
    family: str, bf16: bool, models: Path, tmp_path: Path, trainer: Trainer
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    tensors = load_file(models / family / FILE)
    if bf16:
        tensors = {n: t if n.endswith("correction_bias") else t.bfloat16() for n, t in tensors.items()}
    save_file(tensors, base / FILE)
    (base / "config.json").write_bytes((models / family / "config.json").read_bytes())
    store = WeightStore(str(tmp_path / "weights"), base, durable=False)
    with trainer(base, bf16=bf16, **MTP) as rank:
        begun = store.write(0, rank.export_bytes(), parent=None)
        rank.train(make_batch())
        trained = store.write(1, rank.export_bytes(), parent=0)
        written, digest = {n: t.clone() for n, t in rank.export_weights()}, rank.weights_digest()
        rank.load_weights(store.folder(0))
        assert rank.weights_digest() == begun.digest
    every = [load_tensors(Path(store.folder(version))) for version in (0, 1)]
    assert every[0].keys() == every[1].keys() == tensors.keys()
    assert all(torch.equal(every[0][name], tensor) for name, tensor in tensors.items())
    assert all(torch.equal(every[1][name], tensor) for name, tensor in written.items())
    assert all(name.endswith(COPIES) for name in trained.carried)
    assert len(trained.carried) == len(begun.carried) == (0 if family == "mimo" else 2)
    layer = of_layer(every[1], base)
    moved = [name for name, tensor in layer.items() if not torch.equal(tensor, tensors[name])]
    assert len(moved) > (len(layer) // 2 if bf16 else len(layer) - 3)  # bfloat16 rounds small steps off
    assert trained.digest == digest


def load_tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


@pytest.mark.soak  # `test_two_ranks_equal_one` continues one too
@pytest.mark.parametrize("settings", [MTP, FROZEN])
def test_a_checkpoint_continues_bit_for_bit(
    settings: dict[str, Any], models: Path, tmp_path: Path, trainer: Trainer
) -> None:
    model = models / "glm4_moe"
    with trainer(model, **settings) as rank:
        rank.train(make_batch())
        rank.save_checkpoint(tmp_path / "saved")
        saved = digests(rank)
        second = rank.train(make_batch(1)).metrics
        end = digests(rank)
    with trainer(model, **settings, load=str(tmp_path / "saved")) as rank:
        assert digests(rank) == saved
        again = rank.train(make_batch(1)).metrics
        assert digests(rank) == end
        assert again["mtp_loss"] == second["mtp_loss"]


def test_a_checkpoint_of_another_model_is_refused(models: Path, tmp_path: Path, trainer: Trainer) -> None:
    model, cases = models / "glm4_moe", {"with": MTP, "without": {}}
    architecture = replace(read_architecture(model), trains_prediction=True)
    for name, settings in cases.items():
        with trainer(model, **settings) as rank:
            rank.save_checkpoint(tmp_path / name)
    for name, settings in zip(cases, reversed(cases.values()), strict=True):
        load = str(tmp_path / name)
        with pytest.raises(CheckpointMismatch, match="enable-mtp-training"), trainer(model, **settings, load=load):
            pass
    check_stored_prediction("--load", str(tmp_path / "with"), None, architecture)
    with pytest.raises(CheckpointMismatch, match=r"--load .* does not have"):
        check_stored_prediction("--load", str(tmp_path / "without"), None, architecture)


def test_a_folder_without_the_layer_is_refused(models: Path, trainer: Trainer) -> None:
    architecture = read_architecture(models / "without")
    trained = replace(architecture, trains_prediction=True)
    with pytest.raises(CheckpointMismatch, match=r"--ref-load .*without does not have"):
        check_stored_prediction("--ref-load", str(models / "without"), None, trained)
    check_stored_prediction("--ref-load", str(models / "without"), None, architecture)
    with trainer(models / "without") as rank:  # it trains the other layers
        rank.train(make_batch())


@pytest.mark.parametrize("flags", [("--load",), ("--use-kl-loss", "--kl-loss-coef", "0.1", "--ref-load")])
def test_the_command_refuses_a_folder_without_the_layer(flags: tuple[str, ...], models: Path, tmp_path: Path) -> None:
    """Before anything of the run exists."""
    settings = tmp_path / "good.toml"
    settings.write_text(to_toml(prepare_demo(tmp_path / "data")))
    model, without = str(models / "glm4_moe"), str(models / "without")
    places = ("--config", str(settings), "--runs-dir", str(tmp_path / "runs"), "--run", "r", "--plain")
    words = (*places, "--hf-checkpoint", model, "--enable-mtp-training", *flags)
    with pytest.raises(CheckpointMismatch, match=rf"{flags[-1]} \S*without does not have"):
        command("train")([*words, without])
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "family", ["deepseek_v3", *(pytest.param(family, marks=pytest.mark.soak) for family in ("glm4_moe", "mimo"))]
)
def test_a_conversion_has_the_layer_of_its_source(family: str, models: Path, tmp_path: Path, trainer: Trainer) -> None:
    model = models / family
    with trainer(model, **MTP) as rank:
        rank.train(make_batch())
        rank.save_checkpoint(tmp_path / "saved")
        save_as_megatron_lm(rank, tmp_path / "theirs", apart=True)
        expected = {n: t.clone() for n, t in rank.export_weights()}
    copies = {n: t for n, t in load_file(model / FILE).items() if n.endswith(COPIES[1]) or n not in expected}
    for name in ("saved", "theirs"):
        convert(Conversion(tmp_path / name, tmp_path / f"{name}-hf", FolderFormat.HF, origin=model))
        tensors = load_file(tmp_path / f"{name}-hf" / FILE)
        assert tensors.keys() == expected.keys() | copies.keys()
        assert all(torch.equal(tensors[n], tensor) for n, tensor in (copies | expected).items())
    convert(Conversion(tmp_path / "saved-hf", tmp_path / "there", FolderFormat.TORCH_DIST))
    convert(Conversion(tmp_path / "there", tmp_path / "back", FolderFormat.HF, origin=model))
    assert same_files(tmp_path / "saved-hf", tmp_path / "back")
    for load in ("there", "theirs"):
        with trainer(model, **MTP, load=str(tmp_path / load), load_optim=False) as rank:
            assert all(torch.equal(tensor, expected[name]) for name, tensor in rank.export_weights())
    with trainer(model, load=str(tmp_path / "there"), load_optim=False) as rank:
        assert not of_layer(dict(rank.export_weights()), model)
