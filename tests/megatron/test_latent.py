"""Latent attention: what config.json says in both formats, slime's flags, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from actors.megatron.families.registry import architecture_of
from actors.megatron.flags import sort_flags
from actors.megatron.layout import Layout
from actors.step.data_split import forward_flops
from schemas.errors import CheckpointMismatch, ImpossibleCombination

YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
        "mscale": 0.707, "mscale_all_dim": 0.707}  # fmt: skip
LITE = {"architectures": ["DeepseekV2ForCausalLM"], "num_hidden_layers": 27, "hidden_size": 2048,
        "intermediate_size": 10944, "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 102400,
        "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "moe_intermediate_size": 1408,
        "first_k_dense_replace": 1, "moe_layer_freq": 1, "topk_method": "greedy", "scoring_func": "softmax",
        "norm_topk_prob": False, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0,
        "rope_theta": 10000, "rope_scaling": YARN}  # fmt: skip
"""DeepSeek-V2-Lite, as its own file says it."""
FLAGS = {"multi_latent_attention": True, "kv_lora_rank": 512, "qk_head_dim": 128, "qk_pos_emb_head_dim": 64,
         "v_head_dim": 128, "kv_channels": 128, "qk_layernorm": True, "rotary_scaling_factor": 40.0, "mscale": 0.707,
         "mscale_all_dim": 0.707, "rotary_base": 10000, "moe_layer_freq": "[0]*1+[1]*26"}  # fmt: skip


def test_both_formats_of_rope_are_read() -> None:
    newer = {name: value for name, value in LITE.items() if name not in ("rope_theta", "rope_scaling")}
    rope = {name: value for name, value in YARN.items() if name != "type"}
    newer |= {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, **rope}}
    assert architecture_of(newer) == architecture_of(LITE)


def test_slimes_flags_of_latent_attention_agree_with_the_config() -> None:
    assert sort_flags(FLAGS, architecture_of(LITE), cpu=True).transformer == {"kv_channels": 128}
    with pytest.raises(CheckpointMismatch, match=r"--kv-lora-rank 256 \(the checkpoint says 512\)"):
        architecture_of(LITE).check_flags(FLAGS | {"kv_lora_rank": 256})
    with pytest.raises(CheckpointMismatch, match="--q-lora-rank 1536"):
        architecture_of(LITE).check_flags(FLAGS | {"q_lora_rank": 1536})


def test_scales_have_no_effect_without_yarn() -> None:
    plain = architecture_of(LITE | {"rope_scaling": None})
    flags = sort_flags(FLAGS | {"rotary_scaling_factor": 1, "mscale": 1.0, "mscale_all_dim": 1.0}, plain, cpu=True)
    assert flags.transformer == {"kv_channels": 128, "mscale": 1.0, "mscale_all_dim": 1.0}
    with pytest.raises(CheckpointMismatch, match="--rotary-scaling-factor 40"):
        plain.check_flags(FLAGS)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rope_scaling": YARN | {"mscale_all_dim": None}}, "mscale 0.707 with mscale_all_dim None"),
        ({"rope_scaling": YARN | {"attention_factor": 1.5}}, "attention_factor 1.5"),
        ({"rope_scaling": YARN | {"truncate": False}}, "truncate false"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "default and yarn"),
        ({"num_key_value_heads": 2}, "num_key_value_heads 2 with num_attention_heads 16"),
        ({"rope_interleave": False}, "rope_interleave"),
        ({"attention_bias": True}, "attention_bias"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config fp8 .*fp8_cast_bf16"),
        ({"norm_topk_prob": True}, "norm_topk_prob"),
        ({"moe_layer_freq": 2}, "moe_layer_freq 2"),
        ({"topk_method": "noaux_tc"}, "topk_method noaux_tc"),
        ({"n_group": 8}, "topk_method greedy with n_group 8"),
        (
            {"topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3},
            "num_experts_per_tok 6 with topk_group 3 of 8 groups .*1 expert per group",
        ),
    ],
)
def test_what_megatron_computes_otherwise_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(CheckpointMismatch, match=reason):
        architecture_of(LITE | change)


def test_a_vector_that_cannot_be_cut_is_refused() -> None:
    dense = architecture_of(LITE | {"n_routed_experts": None, "qk_rope_head_dim": 63, "q_lora_rank": 1536})
    with pytest.raises(ImpossibleCombination, match=r"kv_lora_rank \+ qk_rope_head_dim 575"):
        Layout(tensor=2).check(dense)


def test_work_counts_the_latent_projections() -> None:
    dense = architecture_of(LITE | {"n_routed_experts": None, "num_hidden_layers": 1})
    # By hand: query, both halves of key and value, output; then the MLP; a query and a value of 16 heads per token.
    weights = 2048 * 16 * 192 + 2048 * 576 + 512 * 16 * 256 + 16 * 128 * 2048 + 3 * 2048 * 10944
    assert forward_flops(dense, 10) == 2 * 10 * (weights + 16 * 160 * 10 + 2048 * 102400)
