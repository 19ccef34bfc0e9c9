"""Published models: what their config.json says, and how many parameters they have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from schemas.doc import doc


@dataclass(frozen=True, slots=True)
class Published:
    """A model as its checkpoint describes itself."""

    config: Annotated[dict[str, Any], doc("The values of config.json that describe the architecture.")]
    parameters: Annotated[float, doc("Billions, as its page says, without layers for multi-token prediction.")]


def _qwen2(layers: int, hidden: int, ffn: int, heads: int, groups: int, **more: Any) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": layers, "hidden_size": hidden,
        "intermediate_size": ffn, "num_attention_heads": heads, "num_key_value_heads": groups, "vocab_size": 151936,
        "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "tie_word_embeddings": True, "hidden_act": "silu",
        "max_position_embeddings": 32768, "use_sliding_window": False, "sliding_window": 32768,
    } | more  # fmt: skip


def _qwen3(layers: int, hidden: int, ffn: int, heads: int, groups: int = 8, **more: Any) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": layers, "hidden_size": hidden,
        "intermediate_size": ffn, "num_attention_heads": heads, "num_key_value_heads": groups, "head_dim": 128,
        "vocab_size": 151936, "rms_norm_eps": 1e-06, "rope_theta": 1000000, "rope_scaling": None,
        "tie_word_embeddings": True, "attention_bias": False, "hidden_act": "silu", "max_position_embeddings": 40960,
        "use_sliding_window": False,
    } | more  # fmt: skip


def _qwen3_moe(layers: int, hidden: int, ffn: int, heads: int, expert: int) -> dict[str, Any]:
    own = {
        "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": expert, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "tie_word_embeddings": False,
    }  # fmt: skip
    return _qwen3(layers, hidden, ffn, heads, 4, **own)


def _llama(layers: int, hidden: int, ffn: int, heads: int, factor: float | None, **more: Any) -> dict[str, Any]:
    scaling = {
        "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    return {
        "architectures": ["LlamaForCausalLM"], "num_hidden_layers": layers, "hidden_size": hidden,
        "intermediate_size": ffn, "num_attention_heads": heads, "num_key_value_heads": 8, "vocab_size": 128256,
        "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "rope_scaling": scaling if factor else None,
        "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False, "hidden_act": "silu",
        "max_position_embeddings": 131072 if factor else 8192,
    } | more  # fmt: skip


def _glm4(layers: int, hidden: int, ffn: int, heads: int, groups: int, *, bias: bool) -> dict[str, Any]:
    return {
        "architectures": ["Glm4ForCausalLM"], "num_hidden_layers": layers, "hidden_size": hidden,
        "intermediate_size": ffn, "num_attention_heads": heads, "num_key_value_heads": groups, "head_dim": 128,
        "vocab_size": 151552, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
        "tie_word_embeddings": False, "attention_bias": bias, "hidden_act": "silu", "max_position_embeddings": 32768,
    }  # fmt: skip


def _glm4_moe(layers: int, hidden: int, ffn: int, **more: Any) -> dict[str, Any]:
    return {
        "architectures": ["Glm4MoeForCausalLM"], "num_hidden_layers": layers, "hidden_size": hidden,
        "intermediate_size": ffn, "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 151552, "rms_norm_eps": 1e-05, "rope_theta": 1000000, "rope_scaling": None,
        "partial_rotary_factor": 0.5, "tie_word_embeddings": False, "attention_bias": True, "hidden_act": "silu",
        "max_position_embeddings": 131072, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 1,
        "topk_group": 1, "norm_topk_prob": True, "num_nextn_predict_layers": 1,
    } | more  # fmt: skip


def _deepseek(hidden: int, ffn: int, heads: int, **more: Any) -> dict[str, Any]:
    return {
        "architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 61, "hidden_size": hidden,
        "intermediate_size": ffn, "num_attention_heads": heads, "num_key_value_heads": heads, "rms_norm_eps": 1e-06,
        "tie_word_embeddings": False, "attention_bias": False, "hidden_act": "silu", "kv_lora_rank": 512,
        "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "moe_layer_freq": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True,
        "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 1,
    } | more  # fmt: skip


def _yarn(factor: float, beta_fast: float = 32) -> dict[str, Any]:
    return {
        "type": "yarn", "factor": factor, "original_max_position_embeddings": 4096, "beta_fast": beta_fast,
        "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
    }  # fmt: skip


_KIMI: dict[str, Any] = {
    "vocab_size": 163840, "rope_theta": 50000.0, "n_routed_experts": 384, "routed_scaling_factor": 2.827,
}  # fmt: skip

PUBLISHED: dict[str, Published] = {
    "qwen2.5-0.5B": Published(_qwen2(24, 896, 4864, 14, 2), 0.494),
    "qwen2.5-1.5B": Published(_qwen2(28, 1536, 8960, 12, 2), 1.54),
    "qwen2.5-3B": Published(_qwen2(36, 2048, 11008, 16, 2), 3.09),
    "qwen2.5-7B": Published(_qwen2(28, 3584, 18944, 28, 4, vocab_size=152064, tie_word_embeddings=False), 7.62),
    "qwen2.5-14B": Published(
        _qwen2(48, 5120, 13824, 40, 8, vocab_size=152064, tie_word_embeddings=False, rms_norm_eps=1e-5), 14.77
    ),
    "qwen2.5-32B": Published(
        _qwen2(64, 5120, 27648, 40, 8, vocab_size=152064, tie_word_embeddings=False, rms_norm_eps=1e-5), 32.76
    ),
    "qwen3-0.6B": Published(_qwen3(28, 1024, 3072, 16), 0.596),
    "qwen3-1.7B": Published(_qwen3(28, 2048, 6144, 16), 1.72),
    "qwen3-4B": Published(_qwen3(36, 2560, 9728, 32), 4.02),
    "qwen3-4B-Instruct-2507": Published(_qwen3(36, 2560, 9728, 32, rope_theta=5000000), 4.02),
    "qwen3-8B": Published(_qwen3(36, 4096, 12288, 32, tie_word_embeddings=False), 8.19),
    "qwen3-14B": Published(_qwen3(40, 5120, 17408, 40, tie_word_embeddings=False), 14.77),
    "qwen3-32B": Published(_qwen3(64, 5120, 25600, 64, tie_word_embeddings=False), 32.76),
    "qwen3-30B-A3B": Published(_qwen3_moe(48, 2048, 6144, 32, 768), 30.53),
    "qwen3-235B-A22B": Published(_qwen3_moe(94, 4096, 12288, 64, 1536), 235.09),
    "glm4-9B": Published(_glm4(40, 4096, 13696, 32, 2, bias=True), 9.40),
    "glm4.5-106B-A12B": Published(
        _glm4_moe(46, 4096, 10944, n_routed_experts=128, moe_intermediate_size=1408, first_k_dense_replace=1,
                  routed_scaling_factor=1.0, use_qk_norm=False), 106
    ),
    "glm4.5-355B-A32B": Published(
        _glm4_moe(92, 5120, 12288, n_routed_experts=160, moe_intermediate_size=1536, first_k_dense_replace=3,
                  routed_scaling_factor=2.5, use_qk_norm=True), 355
    ),
    "glm4.7-30B-A3B": Published(
        _deepseek(2048, 10240, 20, architectures=["Glm4MoeLiteForCausalLM"], num_hidden_layers=47, vocab_size=154880,
                  rope_theta=1000000, rope_scaling=None, q_lora_rank=768, qk_nope_head_dim=192, v_head_dim=256,
                  n_routed_experts=64, num_experts_per_tok=4, moe_intermediate_size=1536, routed_scaling_factor=1.8,
                  rms_norm_eps=1e-05, num_nextn_predict_layers=1), 30
    ),
    "mimo-7B-rl": Published(
        _qwen2(36, 4096, 11008, 32, 8, architectures=["MiMoForCausalLM"], model_type="mimo", vocab_size=151680,
               tie_word_embeddings=False, rms_norm_eps=1e-05, rope_theta=640000, head_dim=128, attention_bias=True,
               num_nextn_predict_layers=1), 7.62
    ),
    "llama3-8B": Published(_llama(32, 4096, 14336, 32, None), 8.03),
    "llama3-70B": Published(_llama(80, 8192, 28672, 64, None), 70.55),
    "llama3.1-8B": Published(_llama(32, 4096, 14336, 32, 8.0), 8.03),
    "llama3.1-8B-Instruct": Published(_llama(32, 4096, 14336, 32, 8.0), 8.03),
    "llama3.1-70B": Published(_llama(80, 8192, 28672, 64, 8.0), 70.55),
    "llama3.2-3B": Published(_llama(28, 3072, 8192, 24, 32.0, head_dim=128, tie_word_embeddings=True), 3.21),
    "llama3.2-3B-Instruct": Published(_llama(28, 3072, 8192, 24, 32.0, head_dim=128, tie_word_embeddings=True), 3.21),
    "deepseek-v3": Published(
        _deepseek(7168, 18432, 128, vocab_size=129280, rope_theta=10000, rope_scaling=_yarn(40), n_routed_experts=256,
                  n_group=8, topk_group=4, first_k_dense_replace=3, routed_scaling_factor=2.5), 671.03
    ),
    "kimi-k2": Published(_deepseek(7168, 18432, 64, rope_scaling=_yarn(32, 1.0), **_KIMI), 1000),
    "kimi-k2-thinking": Published(
        _deepseek(7168, 18432, 64, rope_scaling=_yarn(64), rms_norm_eps=1e-05, **_KIMI), 1000
    ),
    "moonlight": Published(
        _deepseek(2048, 11264, 16, num_hidden_layers=27, vocab_size=163840, rope_theta=50000.0, rope_scaling=None,
                  q_lora_rank=None, n_routed_experts=64, num_experts_per_tok=6, moe_intermediate_size=1408,
                  n_shared_experts=2, routed_scaling_factor=2.446, rms_norm_eps=1e-05), 15.96
    ),
}  # fmt: skip
"""By the name of the preset."""
