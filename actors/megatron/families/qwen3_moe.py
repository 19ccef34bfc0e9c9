"""Qwen3 with experts in every layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actors.megatron.families.experts import Experts
from actors.megatron.families.mixture import Mixture


class Qwen3Moe(Mixture):
    """Qwen3-30B-A3B and Qwen3-235B-A22B."""

    model_class = "Qwen3MoeForCausalLM"
    qk_layernorm = True
    served_tied = False

    def experts_of(self, config: Mapping[str, Any]) -> Experts:
        """Return the experts, whose number transformers 5 calls `num_local_experts`."""
        return Experts(
            count=config.get("num_experts") or config["num_local_experts"],
            per_token=config["num_experts_per_tok"],
            ffn_hidden_size=config["moe_intermediate_size"],
            normalized=bool(config.get("norm_topk_prob", False)),
        )

    def unsupported(self, config: Mapping[str, Any]) -> dict[str, bool]:
        """Return the conditions of `Dense`, and layers without experts: SGLang would give them experts too."""
        return super().unsupported(config) | {
            "mlp_only_layers": bool(config.get("mlp_only_layers")),
            "decoder_sparse_step": config.get("decoder_sparse_step", 1) != 1,
        }
