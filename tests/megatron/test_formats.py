"""Each format of weights: what one writes, the others and the trainer read, bit for bit."""

from __future__ import annotations

import argparse
import filecmp
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config

from actors.megatron.checkpoint_writer import InProcessWriter
from actors.megatron.convert import Conversion, convert
from actors.megatron.cpu import stand_in
from actors.megatron.families.registry import read_architecture
from actors.megatron.formats.registry import check_beginning, open_weights
from actors.megatron.formats.torch_dist_writer import places_of
from actors.step.policy import REFERENCE
from schemas.errors import CheckpointMismatch, InvalidValue
from storage.weights.folder_formats import FolderFormat, format_of, iteration_folder
from storage.weights.torch_dist import read_stored_tensors
from tests.megatron.tiny import FAMILIES, make_batch, make_model

Trainer = Callable[..., Any]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for family in FAMILIES:
        make_model(folder / family, family, tied=family == "qwen3")
        (folder / family / "tokenizer.json").write_text("{}")
    return folder


def save_as_megatron_lm(rank: Any, folder: Path, *, optimizer: bool = False, apart: bool = False) -> None:
    """Save with Megatron-core's own saver, in the folders of Megatron-LM, as iteration 7."""
    target = folder / "iter_0000007"
    target.mkdir(parents=True)
    trainee, metadata = rank.trainee, {"non_homogeneous_layers": apart, "chained_optim_avoid_prefix": True}
    with stand_in():
        state = trainee.model.module.sharded_state_dict(metadata=metadata)
        if optimizer:
            state["optimizer"] = trainee.optimizer.sharded_state_dict(state.copy(), metadata=metadata)
        state |= {"args": argparse.Namespace(hidden_size=32), "iteration": 7, "checkpoint_version": 3.0}
        request = dist_checkpointing.save(
            state, str(target), sharded_strategy=InProcessWriter(copied=False), async_sharded_save=True
        )
        request.async_fn(*request.async_fn_args)
        request.finalize_fns[0]()
    save_config(CheckpointingConfig("torch_dist", 1), str(target))
    (folder / "latest_checkpointed_iteration.txt").write_text("7")


def same_files(first: Path, second: Path) -> bool:
    names = sorted(path.name for path in first.iterdir())
    same, _, _ = filecmp.cmpfiles(first, second, names, shallow=False)
    return sorted(same) == names == sorted(path.name for path in second.iterdir())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_comes_back_from_torch_dist_byte_for_byte(family: str, models: Path, tmp_path: Path) -> None:
    convert(Conversion(models / family, tmp_path / "there", FolderFormat.TORCH_DIST))
    assert (tmp_path / "there" / "latest_checkpointed_iteration.txt").read_text() == "release"
    convert(Conversion(tmp_path / "there", tmp_path / "back", FolderFormat.HF, origin=models / family))
    assert same_files(models / family, tmp_path / "back")


def test_torch_reads_the_tensors_of_a_conversion(models: Path, tmp_path: Path) -> None:
    convert(Conversion(models / "glm4_moe", tmp_path / "there", FolderFormat.TORCH_DIST))
    architecture, folder = read_architecture(models / "glm4_moe"), tmp_path / "there" / "release"
    stored = read_stored_tensors(folder)
    state = {name: torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype)) for name, tensor in stored.items()}
    torch.distributed.checkpoint.load(state, checkpoint_id=folder, no_dist=True)
    weights = open_weights(models / "glm4_moe", architecture)
    for place, rule in places_of(architecture).items():
        part = state[place.key][place.at] if place.at else state[place.key]
        assert torch.equal(part, rule.merge([weights.tensor(name) for name in rule.names], 0, 1)), place


@pytest.mark.parametrize("family", FAMILIES)
def test_a_rank_reads_its_part_of_a_parameter_and_nothing_else(family: str, models: Path, tmp_path: Path) -> None:
    convert(Conversion(models / family, tmp_path / "there", FolderFormat.TORCH_DIST))
    architecture = read_architecture(models / family)
    rules = places_of(architecture).values()
    for folder in (models / family, tmp_path / "there"):
        whole, weights = open_weights(folder, architecture), open_weights(folder, architecture)
        for rule in rules:
            tensors = [whole.tensor(name) for name in rule.names]
            for rank in range(2):
                before, part = weights.bytes_read, weights.parameter(rule, rank, 2)
                assert torch.equal(part, rule.merge(tensors, rank, 2)), rule.names
                assert weights.bytes_read - before == part.nbytes
        assert weights.bytes_read < 1.2 * whole.bytes_read, "of two ranks together"


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe", "glm4"])
def test_what_megatrons_own_saver_wrote_is_read(
    family: str, apart: bool, models: Path, tmp_path: Path, trainer: Trainer
) -> None:
    with trainer(models / family) as rank:
        rank.train(make_batch())
        digest = rank.weights_digest()
        save_as_megatron_lm(rank, tmp_path / "saved", apart=apart)
        expected = {name: tensor.clone() for name, tensor in rank.export_weights()}
    weights = open_weights(tmp_path / "saved", read_architecture(models / family))
    assert set(weights.names) == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(weights.tensor(name), tensor), name
    with trainer(models / family, load=str(tmp_path / "saved"), load_optim=False) as rank:
        assert rank.weights_digest() == digest


def test_an_own_checkpoint_becomes_a_hugging_face_folder(models: Path, tmp_path: Path, trainer: Trainer) -> None:
    with trainer(models / "qwen3") as rank:
        rank.train(make_batch())
        rank.save_checkpoint(tmp_path / "saved")
        digest = rank.weights_digest()
    convert(Conversion(tmp_path / "saved", tmp_path / "hf", FolderFormat.HF, origin=models / "qwen3"))
    with trainer(tmp_path / "hf") as rank:
        assert rank.weights_digest() == digest


def test_a_reference_is_read_from_torch_dist(models: Path, tmp_path: Path, trainer: Trainer) -> None:
    convert(Conversion(models / "qwen3", tmp_path / "there", FolderFormat.TORCH_DIST))
    kl = {"use_kl_loss": True, "kl_loss_coef": 0.1}
    digests = []
    for folder in (models / "qwen3", tmp_path / "there"):
        with trainer(models / "qwen3", kl, ref_load=str(folder)) as rank:
            rank.train(make_batch())
            digests.append((rank.trainee.frozen[REFERENCE].digest, rank.weights_digest()))
    assert digests[0] == digests[1]


def test_an_optimizer_of_megatron_lm_is_refused_by_name(models: Path, tmp_path: Path, trainer: Trainer) -> None:
    with trainer(models / "qwen3") as rank:
        rank.train(make_batch())
        save_as_megatron_lm(rank, tmp_path / "saved", optimizer=True)
    with pytest.raises(CheckpointMismatch, match="--no-load-optim"):
        check_beginning(tmp_path / "saved", None, optimizer=True)
    check_beginning(tmp_path / "saved", 7, optimizer=False)
    with pytest.raises(CheckpointMismatch, match=r"iter_0000009 .*holds iter_0000007"):
        check_beginning(tmp_path / "saved", 9, optimizer=False)


def test_a_folder_of_another_model_is_refused_with_its_tensors(models: Path, tmp_path: Path) -> None:
    convert(Conversion(models / "qwen3", tmp_path / "there", FolderFormat.TORCH_DIST))
    make_model(tmp_path / "wide", "qwen3", intermediate_size=64)
    make_model(tmp_path / "deep", "qwen3", num_hidden_layers=3)
    make_model(tmp_path / "shallow", "qwen3", num_hidden_layers=1)
    for other, problem in (
        ("wide", r"linear_fc1\.weight\[0\]: shape \[96, 32\], but the model has \[128, 32\]"),
        (
            "deep",
            r"decoder\.layers\.self_attention\.linear_qkv\.layer_norm_weight\[2\]: missing",
        ),
        ("shallow", "but the model has \\[1\\] layers"),
    ):
        with pytest.raises(CheckpointMismatch, match=problem):
            open_weights(tmp_path / "there", read_architecture(tmp_path / other))
    with pytest.raises(CheckpointMismatch, match=r"linear_qkv\.bias"):
        open_weights(tmp_path / "there", read_architecture(models / "qwen2"))


def test_a_padded_vocabulary_is_cut(models: Path, tmp_path: Path) -> None:
    convert(Conversion(models / "qwen3", tmp_path / "there", FolderFormat.TORCH_DIST))
    make_model(tmp_path / "fewer", "qwen3", vocab_size=50)
    whole, cut = (
        open_weights(tmp_path / "there", read_architecture(f)) for f in (models / "qwen3", tmp_path / "fewer")
    )
    name = "model.embed_tokens.weight"
    assert torch.equal(cut.tensor(name), whole.tensor(name)[:50])


def test_damage_is_named(models: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    convert(Conversion(models / "qwen3", there, FolderFormat.TORCH_DIST))
    data = there / "release" / "__0_0.distcp"
    data.write_bytes(data.read_bytes()[:2000])
    with pytest.raises(CheckpointMismatch, match=r"__0_0\.distcp"):
        convert(Conversion(there, tmp_path / "back", FolderFormat.HF, origin=models / "qwen3"))
    assert not list(tmp_path.glob("*back*")), "nothing of it is left"
    (there / "release" / ".metadata").write_bytes(b"no pickle")
    with pytest.raises(CheckpointMismatch, match=r"\.metadata cannot be read"):
        read_stored_tensors(iteration_folder(there))


def test_a_pickle_from_elsewhere_runs_nothing(models: Path, tmp_path: Path) -> None:
    convert(Conversion(models / "qwen3", tmp_path / "there", FolderFormat.TORCH_DIST))
    metadata = tmp_path / "there" / "release" / ".metadata"
    metadata.write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path / "ran").encode() + b"'\ntR.")
    with pytest.raises(CheckpointMismatch):
        read_stored_tensors(metadata.parent)
    assert not (tmp_path / "ran").exists()


def test_a_conversion_never_overwrites_and_checks_its_source_first(models: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    convert(Conversion(models / "qwen3", tmp_path / "there", FolderFormat.TORCH_DIST))
    with pytest.raises(InvalidValue, match="exists already"):
        convert(Conversion(models / "qwen3", tmp_path / "full", FolderFormat.TORCH_DIST))
    with pytest.raises(CheckpointMismatch, match="neither"):
        convert(Conversion(tmp_path / "full", tmp_path / "new", FolderFormat.TORCH_DIST))
    with pytest.raises(InvalidValue, match="--origin-hf-dir"):
        convert(Conversion(tmp_path / "there", tmp_path / "new", FolderFormat.HF))
    assert format_of(tmp_path / "new") is None
