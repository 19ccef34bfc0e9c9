"""Hugging Face <-> Megatron: the same logits, the same bytes back, and what does not fit is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from actors.megatron.families.registry import read_architecture
from actors.megatron.families.rules import Copy, GateUp, Qkv, Rule
from actors.megatron.forward import pack
from actors.megatron.rank import TrainerRank
from actors.step.micro_batch import MicroBatch
from schemas.errors import CheckpointMismatch
from slime_events.core.training.train_batch import TrainSample
from storage.weights.files import open_checkpoint
from storage.weights.store import WeightStore
from tests.megatron.tiny import make_batch, make_model

CASES = [
    *(("qwen3", True), ("qwen3", False), ("llama", True), ("llama", False), ("qwen2", True)),
    *(("mistral", False), ("glm4", False), ("glm4", True), ("qwen3_moe", False), ("qwen3_moe", True)),
    *(("deepseek_v2_dense", False), ("deepseek_v2", False), ("deepseek_v2_groups", False)),
    *(("deepseek_v3", False), ("moonlight", False), ("glm4_moe_lite", False)),
    *(("glm4_moe", False), ("glm4_moe", True), ("mimo", False)),
]


def logits_of(rank: TrainerRank, samples: tuple[TrainSample, ...]) -> list[torch.Tensor]:
    """Logits [response, vocabulary] of each sample, packed together."""
    batch: MicroBatch = pack(samples, rank.place.device)
    with torch.no_grad():
        logits = rank.trainee.model(batch.token_ids, batch.position_ids, None, packed_seq_params=batch.packed)
    return list(logits.squeeze(0).split(batch.responses))


@pytest.mark.parametrize(("family", "tied"), CASES)
def test_logits_equal_transformers_and_export_gives_the_checkpoint_back(
    family: str, tied: bool, tmp_path: Path, trainer: Callable[..., Any]
) -> None:
    model = make_model(tmp_path, family, tied=tied)
    samples = make_batch().samples
    with trainer(tmp_path) as rank:
        packed = logits_of(rank, samples)
        exported = {name: tensor.clone() for name, tensor in rank.export_weights()}
        alone = [logits_of(rank, (sample,))[0] for sample in samples]
    for sample, ours, unpacked in zip(samples, packed, alone, strict=True):
        with torch.no_grad():
            expected = model(torch.from_numpy(sample.tokens).long()[None]).logits[0]
        first = sample.total_length - sample.response_length - 1
        torch.testing.assert_close(ours, expected[first:-1], atol=1e-5, rtol=0)
        torch.testing.assert_close(ours, unpacked, atol=1e-5, rtol=0)
    original = load_file(tmp_path / "model.safetensors")
    assert exported.keys() == original.keys()
    assert all(torch.equal(exported[name], original[name]) for name in original)


def test_llama3_rope_scaling_equals_transformers(tmp_path: Path, trainer: Callable[..., Any]) -> None:
    scaling = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0}
    scaling |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    model = make_model(tmp_path, "llama", rope_parameters=scaling, max_position_embeddings=16384)
    sample = make_batch().samples[0]
    with trainer(tmp_path) as rank, torch.no_grad():
        expected = model(torch.from_numpy(sample.tokens).long()[None]).logits[0, -sample.response_length - 1 : -1]
        torch.testing.assert_close(logits_of(rank, (sample,))[0], expected, atol=1e-5, rtol=0)


def test_a_sharded_folder_loads_like_a_single_file(tmp_path: Path, trainer: Callable[..., Any]) -> None:
    model = make_model(tmp_path / "one")
    model.save_pretrained(tmp_path / "many", max_shard_size="10KB")
    assert (tmp_path / "many" / "model.safetensors.index.json").exists()
    sample = make_batch().samples[:1]
    logits = []
    for name in ("one", "many"):
        with trainer(tmp_path / name) as rank:
            logits.append(logits_of(rank, sample)[0])
    assert torch.equal(*logits)


def damage(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.norm.weight"), r"model\.norm\.weight: missing"),
        (lambda t: t.update({"model.extra": torch.ones(1)}), r"model\.extra: unexpected"),
        (
            lambda t: t.update({"model.layers.1.mlp.up_proj.weight": torch.ones(47, 32)}),
            r"model\.layers\.1\.mlp\.up_proj\.weight: shape \[47, 32\], but the model has \[48, 32\]",
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(
    change: Callable[[dict[str, torch.Tensor]], None], message: str, tmp_path: Path, trainer: Callable[..., Any]
) -> None:
    make_model(tmp_path)
    damage(tmp_path, change)
    with pytest.raises(CheckpointMismatch, match=message), trainer(tmp_path):
        pass


def test_versions_repeat_layers_that_predict_further_tokens(tmp_path: Path, trainer: Callable[..., Any]) -> None:
    make_model(tmp_path)
    with trainer(tmp_path) as rank:
        digest = rank.weights_digest()
    damage(tmp_path, lambda t: t.update({"model.layers.2.eh_proj.weight": torch.ones(32, 64)}))
    with pytest.raises(CheckpointMismatch, match=r"model\.layers\.2\.eh_proj\.weight: unexpected"), trainer(tmp_path):
        pass
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    with trainer(tmp_path) as rank:
        assert rank.weights_digest() == digest
        assert not any("layers.2" in name for name, _ in rank.export_weights())
        store = WeightStore(str(tmp_path / "weights"), base=tmp_path, durable=False)
        assert store.write(0, rank.export_bytes(), parent=None).digest == digest
        folder = store.folder(0)
        rank.load_weights(folder)
        assert (rank.weights_digest(), rank.weights_distance(folder).max_abs) == (digest, 0.0)
    stored, own = open_checkpoint(folder), open_checkpoint(tmp_path)
    assert {name: bytes(tensor.data) for name, tensor in stored.items()} == {
        name: bytes(own[name].data) for name in own.keys() - {"lm_head.weight"}
    }


def test_a_config_of_another_size_names_the_shapes(tmp_path: Path, trainer: Callable[..., Any]) -> None:
    make_model(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "intermediate_size": 64}))
    with pytest.raises(CheckpointMismatch, match=r"shape \[32, 48\], but the model has \[32, 64\]"), trainer(tmp_path):
        pass
    assert read_architecture(tmp_path).ffn_hidden_size == 64


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    "rule",
    [
        Qkv.of(("q", "k", "v"), ((16, 6), (8, 6), (8, 6)), 4),
        GateUp.of(("gate", "up"), 8, 6),
        GateUp.of(("gate_up",), 8, 6),
        Copy.of("down", 6, 8, cut=1),
        Copy.of("norm", 6),
    ],
)
def test_split_is_the_inverse_of_merge(rule: Rule, ranks: int) -> None:
    tensors = [torch.randn(shape) for shape in rule.shapes]
    back = rule.split([rule.merge(tensors, rank, ranks) for rank in range(ranks)])
    assert all(torch.equal(tensor, other) for tensor, other in zip(tensors, back, strict=True))
