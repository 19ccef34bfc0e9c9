"""Each family: each gradient equals that of transformers, and two ranks have the gradients of one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from safetensors.torch import load_file

from actors.megatron.families.expert_layers import IGNORED, READ, REFUSED
from actors.megatron.families.experts import layers_with_experts
from actors.megatron.families.registry import FAMILIES as CLASSES
from actors.megatron.families.registry import architecture_of, family_of, read_architecture
from actors.megatron.layout import Layout
from actors.megatron.memory import count_parameters
from actors.megatron.model import transformer_config
from schemas.errors import CheckpointMismatch, ImpossibleCombination, InvalidValue
from slime_events.app.launch.model_preflight import check_served
from slime_events.core.config.engine import EngineSettings
from slime_events.core.config.settings import DebugSettings
from slime_events.core.config.trainer import TrainerSettings
from tests import made
from tests.megatron.gradients import gradients_of, plain_gradients
from tests.megatron.tiny import FAMILIES, MOVING_BIAS, make_batch, make_model
from tests.megatron.two_processes import RankPair
from tools.models_page import document

Trainer = Callable[..., Any]
BIAS = ".gate.e_score_correction_bias"
DOCS = Path(__file__).parents[2] / "docs" / "models.md"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model of each family, under its name."""
    folder = tmp_path_factory.mktemp("families")
    for family in FAMILIES:
        make_model(folder / family, family, tied=False)
    return folder


@pytest.fixture(scope="module")
def two_ranks(models: Path, rank_pair: RankPair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the gradients and weights of two ranks, tensor parallel or data parallel, after a step."""
    return rank_pair.run("tests.megatron.family_ranks", models, tmp_path_factory.mktemp("ranks"))


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
    assert sum(gradient.numel() for gradient in ours.values()) == count_parameters(read_architecture(models / family))
    theirs = plain_gradients(make_model(tmp_path, family, tied=False), batch)
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(
            ours[name], gradient, atol=1e-6, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_continues_bit_by_bit(family: str, models: Path, tmp_path: Path, trainer: Trainer) -> None:
    with trainer(models / family) as rank:
        rank.train(make_batch(0))
        rank.save_checkpoint(tmp_path / "checkpoint")
        digests = rank.weights_digest(), rank.optimizer_digest()
        expected = rank.train(make_batch(1)).metrics["loss"], rank.weights_digest(), rank.optimizer_digest()
    assert digests != expected[1:]
    with trainer(models / family, load=str(tmp_path / "checkpoint")) as rank:
        assert (rank.weights_digest(), rank.optimizer_digest()) == digests
        assert (rank.train(make_batch(1)).metrics["loss"], rank.weights_digest(), rank.optimizer_digest()) == expected


@pytest.mark.real
@pytest.mark.parametrize("family", FAMILIES)
def test_two_ranks_have_the_gradients_of_one(family: str, models: Path, two_ranks: Path, trainer: Trainer) -> None:
    moving = MOVING_BIAS if family == "glm4_moe" else {}
    with trainer(models / family, clip_grad=0.0, **moving) as rank:
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
    biases = [name for name in after if name.endswith(BIAS)]
    assert (len(biases) > 0) is (family in ("glm4_moe", "glm4_moe_lite", "deepseek_v3", "moonlight"))
    assert all(torch.equal(after[name], weights[name]) for name in biases)


MOE = {"architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48,
       "num_attention_heads": 4, "vocab_size": 64, "num_experts": 4, "num_experts_per_tok": 2,
       "moe_intermediate_size": 24, "norm_topk_prob": True}  # fmt: skip


SIGMOID = MOE | {"architectures": ["Glm4MoeForCausalLM"], "n_routed_experts": 8, "num_experts_per_tok": 4,
                 "n_shared_experts": 1, "routed_scaling_factor": 2.5, "first_k_dense_replace": 1, "n_group": 4,
                 "topk_group": 2}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"norm_topk_prob": False}, "norm_topk_prob false"),
        ({"num_experts_per_tok": 1, "topk_group": 4}, "num_experts_per_tok 1 "),
        ({"num_experts_per_tok": 2}, r"topk_group 2 of n_group 4 with num_experts_per_tok 2 \(4 is supported\)"),
        ({"scoring_func": "softmax"}, "scoring_func softmax"),
        ({"topk_method": "greedy"}, "topk_method greedy"),
        ({"moe_layer_freq": 2}, "moe_layer_freq 2"),
    ],
)
def test_a_router_that_megatron_does_not_have_is_refused(change: dict[str, Any], reason: str) -> None:
    assert architecture_of(SIGMOID).active_ffn_size == (48 + 5 * 24) // 2
    with pytest.raises(CheckpointMismatch, match=reason):
        architecture_of(SIGMOID | change)


def test_a_config_without_a_size_of_the_router_is_refused() -> None:
    with pytest.raises(CheckpointMismatch, match="n_group is missing"):
        architecture_of({name: value for name, value in SIGMOID.items() if name != "n_group"})


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"mlp_only_layers": [0]}, "mlp_only_layers"), ({"decoder_sparse_step": 2}, "decoder_sparse_step")],
)
def test_layers_without_experts_are_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(CheckpointMismatch, match=reason):
        architecture_of(MOE | change)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("model_class", CLASSES)
def test_a_tied_model_that_sglang_would_serve_with_random_weights_is_refused(
    model_class: str, tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    architecture = replace(architecture_of(MOE), model_class=model_class, tied=tied)
    monkeypatch.setattr("actors.megatron.families.registry.read_architecture", lambda folder: architecture)
    settings = made.settings(trainer=TrainerSettings(hf_checkpoint=str(tmp_path)))
    if tied and model_class in ("Qwen3MoeForCausalLM", "Glm4MoeForCausalLM", "Glm4MoeLiteForCausalLM"):
        with pytest.raises(CheckpointMismatch, match=r"lm_head\.weight"):
            check_served(settings)
        settings = msgspec.structs.replace(settings, debug=DebugSettings(debug_train_only=True))
    check_served(settings)


def test_a_config_that_sglang_reads_with_code_of_the_checkpoint_is_refused(tmp_path: Path) -> None:
    make_model(tmp_path, "mimo", tied=False)
    settings = made.settings(trainer=TrainerSettings(hf_checkpoint=str(tmp_path)))
    check_served(settings)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "mimo"}))  # as it is published
    with pytest.raises(CheckpointMismatch, match="model_type mimo"):
        check_served(settings)
    for change in ({"debug": DebugSettings(debug_train_only=True)}, {"engine": with_own_code()}):
        check_served(msgspec.structs.replace(settings, **change))


def with_own_code() -> EngineSettings:
    return EngineSettings(sglang={"trust_remote_code": True})


def test_slimes_flags_of_experts_agree_with_the_config() -> None:
    flags = {
        "num_moe_experts": 4,
        "moe_router_topk": 2,
        "moe_ffn_hidden_size": 24,
        "moe_layer_freq": "([1]*2)",
        "moe_router_score_function": "softmax",
    }
    architecture_of(MOE).check_flags(flags)
    with pytest.raises(CheckpointMismatch, match="--num-moe-experts 8"):
        architecture_of(MOE).check_flags(flags | {"num_moe_experts": 8})
    with pytest.raises(CheckpointMismatch, match="--moe-layer-freq"):
        architecture_of(MOE).check_flags(flags | {"moe_layer_freq": "[0]*1+[1]*1"})


def test_slimes_flags_of_glm_4_7_agree_with_the_config() -> None:
    """Compare those of slime's scripts/run-glm4.7-355B-A32B.sh, with smaller sizes."""
    flags = {
        "moe_ffn_hidden_size": 24,
        "moe_shared_expert_intermediate_size": 24,
        "moe_router_pre_softmax": True,
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_bias_update_rate": 0,
        "moe_router_load_balancing_type": "seq_aux_loss",
        "moe_token_dispatcher_type": "alltoall",
        "moe_router_topk": 4,
        "moe_router_topk_scaling_factor": 2.5,
        "moe_router_num_groups": 4,
        "moe_router_group_topk": 2,
        "moe_layer_freq": "[0]*1+[1]*1",
        "num_moe_experts": 8,
        "moe_aux_loss_coeff": 0,
    }
    architecture_of(SIGMOID).check_flags(flags)
    wrong = {
        "moe_router_score_function": "softmax",
        "moe_router_enable_expert_bias": False,
        "moe_router_topk_scaling_factor": 1.8,
        "moe_router_num_groups": 1,
        "moe_shared_expert_intermediate_size": 48,
        "moe_layer_freq": "[1]*2",
    }
    with pytest.raises(CheckpointMismatch) as refused:
        architecture_of(SIGMOID).check_flags(flags | wrong)
    assert all(f"--{name.replace('_', '-')} " in str(refused.value) for name in wrong)


@pytest.mark.parametrize(
    ("pattern", "layers"),
    [
        (1, [1, 1, 1]),
        ("2", [1, 0, 1]),
        ("[0]*1+[1]*2", [0, 1, 1]),
        ("([1]*3)", [1, 1, 1]),
        ("[0,1]+[1]", [0, 1, 1]),
        ([1, 1, 1], [1, 1, 1]),
        ("__import__('os')", None),
        ("0", None),
        ("", None),
    ],
)
def test_a_layer_pattern_is_read_and_never_run(pattern: object, layers: list[int] | None) -> None:
    assert layers_with_experts(pattern, 3) == layers


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"tensor_model_parallel_size": 2}, "tensor-model"),
        ({"megatron": {"expert_model_parallel_size": 3}}, "expert-model"),
        ({"megatron": {"expert_tensor_parallel_size": 5}}, "expert-tensor"),
    ],
)
def test_a_layout_that_cannot_run_experts_is_refused(setting: dict[str, Any], reason: str) -> None:
    with pytest.raises(ImpossibleCombination, match=reason):
        Layout.of(TrainerSettings(**setting)).check(architecture_of(MOE))


@pytest.mark.parametrize("ranks", ["x", 0, -1, 1.5, True, [2]])
def test_a_number_of_ranks_is_a_whole_number(ranks: object) -> None:
    with pytest.raises(InvalidValue, match="expert-model-parallel-size"):
        Layout.of(TrainerSettings(megatron={"expert_model_parallel_size": ranks}))


@pytest.mark.parametrize(
    ("config", "setting", "reason"),
    [
        (SIGMOID, {"moe_expert_capacity_factor": 1.0}, "moe-expert-capacity-factor"),
        (SIGMOID, {"moe_input_jitter_eps": 0.1}, "moe-input-jitter-eps"),
        (MOE, {"moe_router_bias_update_rate": 0.001}, "routers of Qwen3MoeForCausalLM have no bias"),
    ],
)
def test_a_setting_that_would_make_log_probs_inexact_is_refused(
    config: dict[str, Any], setting: dict[str, float], reason: str
) -> None:
    with pytest.raises(InvalidValue, match=reason):
        transformer_config(architecture_of(config), TrainerSettings(), setting)


def test_settings_of_speed_that_have_no_effect_are_named(caplog: pytest.LogCaptureFixture) -> None:
    flags = {"moe_permute_fusion": True, "moe_enable_deepep": True, "moe_token_dispatcher_type": "flex"}
    config = transformer_config(architecture_of(MOE), TrainerSettings(), flags)
    assert all(name in caplog.text for name in flags)
    assert not config.moe_enable_deepep


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


def test_the_page_has_every_family() -> None:
    page = DOCS.read_text(encoding="utf-8")
    assert document(page) == page, "python -m tools.models_page docs/models.md"


def test_each_of_megatrons_settings_of_experts_has_a_place() -> None:
    fields = {field.name for field in dataclasses.fields(TransformerConfig) if "moe" in field.name}
    places = (READ, IGNORED, REFUSED, [name for name in architecture_of(MOE).as_flags() if name in fields])
    named = [name for place in places for name in place]
    assert sorted({*named, "moe_router_pre_softmax"}) == sorted(fields)
    assert len(named) - len(set(named)) <= 1, "a softmax setting without effect with a sigmoid"


@pytest.mark.parametrize("name", [*REFUSED, "moe_router_fusion"])
def test_a_setting_without_a_meaning_here_is_refused(name: str) -> None:
    with pytest.raises(InvalidValue, match=name.replace("_", "-")):
        transformer_config(architecture_of(MOE), TrainerSettings(), {name: True})


def test_the_type_of_the_scores_is_one_that_routers_know() -> None:
    assert transformer_config(architecture_of(MOE), TrainerSettings(), {"moe_router_dtype": "fp64"}).moe_router_dtype
    with pytest.raises(InvalidValue, match="moe-router-dtype bf16"):
        transformer_config(architecture_of(MOE), TrainerSettings(), {"moe_router_dtype": "bf16"})
