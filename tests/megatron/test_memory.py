"""Numbers of parameters: those of transformers' models, and the same over all ranks of a layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from actors.megatron.families.architecture import Architecture
from actors.megatron.families.registry import FAMILIES, architecture_of
from actors.megatron.layout import Layout
from actors.megatron.memory import count_parameters, rank_memory, stage_parameters
from slime_events.app.launch.model_preflight import memory_note
from slime_events.core.config.settings import DebugSettings
from slime_events.core.config.trainer import TrainerSettings
from tests import made
from tests.megatron.published import PUBLISHED

GIB = 2**30
TYPES = {
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "LlamaForCausalLM": "llama",
    "Glm4ForCausalLM": "glm4",
    "Glm4MoeForCausalLM": "glm4_moe",
    "Glm4MoeLiteForCausalLM": "glm4_moe_lite",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "MiMoForCausalLM": "qwen2",
}
"""Model class to transformers' name of its configuration."""
NAMES = [name for name, model in PUBLISHED.items() if model.config["architectures"][0] in FAMILIES]


def architecture(name: str) -> Architecture:
    return architecture_of(PUBLISHED[name].config)


@pytest.mark.parametrize("name", NAMES)
def test_a_published_model_has_its_number_of_parameters(name: str) -> None:
    config = dict(PUBLISHED[name].config)
    (model_class,) = config.pop("architectures")
    config.pop("model_type", None)  # of a class that transformers does not have
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(TYPES[model_class], **config))
    assert count_parameters(architecture(name)) == sum(parameter.numel() for parameter in model.parameters())
    assert count_parameters(architecture(name)) / 1e9 == pytest.approx(PUBLISHED[name].parameters, rel=0.03)


@given(
    name=st.sampled_from(NAMES),
    tensor=st.sampled_from((1, 2, 4)),
    pipeline=st.integers(1, 9),
    context=st.sampled_from((1, 2)),
    data=st.sampled_from((1, 2, 8)),
)
def test_ranks_have_all_parameters_together(name: str, tensor: int, pipeline: int, context: int, data: int) -> None:
    model = architecture(name)
    expert = 4 if model.experts is not None and data % 4 == 0 else 1
    layout, ranks = Layout(tensor, pipeline, context, expert), tensor * pipeline * context * data
    assert sum(len(part) for stage in layout.stages(model.num_layers) for part in stage) == model.num_layers
    for sharded in (False, True):
        stages = [rank_memory(model, layout, ranks, stage=stage, sharded=sharded) for stage in range(pipeline)]
        each = ranks // pipeline
        stored = sum(memory.optimizer for memory in stages) * each / 12
        embedding = model.vocab_size * model.hidden_size if model.tied and pipeline > 1 else 0
        whole = count_parameters(model) + embedding
        if sharded:  # but for what is lost to rounding, and norms, which each tensor parallel rank has
            assert 0.99 * whole < stored < 1.02 * whole + (tensor - 1) * _copied(model)
        else:
            assert stored >= whole
        assert all(memory.weights == 2 * memory.parameters for memory in stages)
        assert all(memory.gradients == 4 * memory.parameters for memory in stages)


def _copied(model: Architecture) -> int:
    return stage_parameters(model, range(model.num_layers), first=True, last=True).copied


def test_what_a_rank_of_known_runs_keeps() -> None:
    alone = rank_memory(architecture("qwen3-4B"), Layout(), 1)
    assert alone.total == 18 * 4_022_468_096
    shared = rank_memory(architecture("qwen3-4B"), Layout(tensor=2), 8)
    assert shared.total / GIB == pytest.approx((6 / 2 + 12 / 8) * 4.022e9 / GIB, rel=1e-3)
    on_cpu = rank_memory(architecture("qwen3-0.6B"), Layout(), 1, bf16=False, sharded=False)
    assert on_cpu.total == 16 * 596_049_920
    experts = rank_memory(architecture("qwen3-30B-A3B"), Layout(tensor=4, expert=8), 8)
    assert experts.parameters == pytest.approx((30.53e9 - 1.54e9) / 8 + 1.54e9 / 4, rel=0.01)


def test_a_start_on_a_gpu_says_what_a_rank_keeps(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED["qwen3-4B"].config))

    def note(debug: DebugSettings | None = None, **trainer: Any) -> str | None:
        settings = TrainerSettings(hf_checkpoint=str(tmp_path), bf16=True, actor_num_gpus_per_node=8, **trainer)
        return memory_note(made.settings(trainer=settings, debug=debug or DebugSettings()))

    assert note(tensor_model_parallel_size=2) == (
        "a trainer rank keeps 16.9 GiB on its GPU (weights 3.7, gradients 7.5, optimizer 5.6) of a model of 4.02 "
        "billion parameters; activations come on top"
    )
    assert "optimizer 5.6" in str(note())
    assert "optimizer 45.0" in str(note(megatron={"use_distributed_optimizer": False}))
    assert "optimizer 0.0" in str(note(megatron={"optimizer_cpu_offload": True}))
    assert note(DebugSettings(debug_rollout_only=True)) is None


@pytest.mark.parametrize(
    ("layers", "layout", "counts"),
    [
        (8, Layout(), (8,)),
        (8, Layout(pipeline=4), (2, 2, 2, 2)),
        (94, Layout(pipeline=4, last_stage=22), (24, 24, 24, 22)),
        (61, Layout(pipeline=4, last_stage=13), (16, 16, 16, 13)),
        (10, Layout(pipeline=3, first_stage=2, last_stage=3), (2, 5, 3)),
        (5, Layout(pipeline=2, first_stage=2, last_stage=3), (2, 3)),
    ],
)
def test_stages_have_the_layers_that_the_layout_says(layers: int, layout: Layout, counts: tuple[int, ...]) -> None:
    stages = layout.stages(layers)
    assert tuple(sum(map(len, stage)) for stage in stages) == counts
    assert sorted(layer for stage in stages for part in stage for layer in part) == list(range(layers))


def test_experts_are_divided_over_their_own_ranks() -> None:
    model = architecture("qwen3-30B-A3B")
    parts = [rank_memory(model, Layout(expert=size), 8).parameters for size in (1, 2, 4, 8)]
    whole = model.experts
    assert whole is not None
    experts = 48 * whole.count * 3 * model.hidden_size * whole.ffn_hidden_size
    assert [parts[0] - part for part in parts] == [experts - experts // size for size in (1, 2, 4, 8)]
