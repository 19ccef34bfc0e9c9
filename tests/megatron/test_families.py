"""Each family: each gradient equals that of transformers, and two tensor parallel ranks have the gradients of one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from actors.megatron.families.registry import FAMILIES as CLASSES
from actors.megatron.families.registry import architecture_of, family_of, read_architecture
from schemas.errors import CheckpointMismatch
from tests.megatron.gradients import gradients_of, plain_gradients
from tests.megatron.tiny import FAMILIES, make_batch, make_model
from tests.megatron.two_processes import run_two

Trainer = Callable[..., Any]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model of each family, under its name."""
    folder = tmp_path_factory.mktemp("families")
    for family in FAMILIES:
        make_model(folder / family, family, tied=False)
    return folder


@pytest.fixture(scope="module")
def two_ranks(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the gradients and weights that two tensor parallel ranks have after a step."""
    out = tmp_path_factory.mktemp("ranks")
    run_two("tests.megatron.family_ranks", models, out)
    return out


def test_every_family_has_a_tiny_model(models: Path) -> None:
    assert {read_architecture(models / family).model_class for family in FAMILIES} == set(CLASSES)


def test_a_family_reads_the_class_that_it_is_registered_for(models: Path) -> None:
    for family in FAMILIES:
        architecture = read_architecture(models / family)
        assert family_of(architecture) is CLASSES[architecture.model_class]


@pytest.mark.parametrize("family", FAMILIES)
def test_each_gradient_equals_that_of_transformers(family: str, models: Path, tmp_path: Path, trainer: Trainer) -> None:
    batch = make_batch()
    with trainer(models / family, clip_grad=0.0) as rank:
        rank.train(batch)
        ours = gradients_of(rank)
    theirs = plain_gradients(make_model(tmp_path, family, tied=False), batch)
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(
            ours[name], gradient, atol=1e-6, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.real
@pytest.mark.parametrize("family", FAMILIES)
def test_two_tensor_parallel_ranks_have_the_gradients_of_one(
    family: str, models: Path, two_ranks: Path, trainer: Trainer
) -> None:
    with trainer(models / family, clip_grad=0.0) as rank:
        rank.train(make_batch())
        alone = gradients_of(rank)
        weights = {name: tensor.clone() for name, tensor in rank.export_weights()}
    together = load_file(two_ranks / f"{family}.gradients")
    assert together.keys() == alone.keys()
    for name, gradient in alone.items():
        torch.testing.assert_close(
            together[name], gradient, atol=1e-6, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )
    after = load_file(two_ranks / f"{family}.weights")
    assert after.keys() == weights.keys()


MISTRAL = {"architectures": ["MistralForCausalLM"], "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48,
           "num_attention_heads": 4, "vocab_size": 64}  # fmt: skip


def test_a_sliding_window_is_refused() -> None:
    assert architecture_of(MISTRAL | {"sliding_window": None}).kv_channels == 8
    with pytest.raises(CheckpointMismatch, match="sliding_window 4096"):
        architecture_of(MISTRAL | {"sliding_window": 4096})


def test_slimes_flags_of_glm4_agree_with_its_config(models: Path) -> None:
    architecture = read_architecture(models / "glm4")
    flags = {
        "rotary_percent": 0.5,
        "rotary_interleaved": True,
        "post_self_attn_layernorm": True,
        "post_mlp_layernorm": True,
        "add_qkv_bias": True,
    }
    architecture.check_flags(flags)
    with pytest.raises(CheckpointMismatch, match="--post-mlp-layernorm False"):
        architecture.check_flags(flags | {"post_mlp_layernorm": False})
