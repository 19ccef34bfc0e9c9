"""Qwen3 with experts in every layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from actors.megatron.families.architecture import Architecture
from actors.megatron.families.experts import Experts
from actors.megatron.families.qwen3 import Qwen3
from actors.megatron.families.rules import Copy, GateUp, Rule

if TYPE_CHECKING:
    from megatron.core.transformer.spec_utils import ModuleSpec


class Qwen3Moe(Qwen3):
    """Qwen3-30B-A3B and Qwen3-235B-A22B, with tensor-model-parallel-size 1."""

    model_class = "Qwen3MoeForCausalLM"

    def read(self, config: Mapping[str, Any], where: str) -> Architecture:
        """Return the architecture with its experts, whose number transformers 5 calls `num_local_experts`."""
        experts = Experts(
            count=config.get("num_experts") or config["num_local_experts"],
            per_token=config["num_experts_per_tok"],
            ffn_hidden_size=config["moe_intermediate_size"],
            normalized=bool(config.get("norm_topk_prob", False)),
        )
        return replace(super().read(config, where), experts=experts)

    def unsupported(self, config: Mapping[str, Any]) -> dict[str, bool]:
        """Return the conditions of `Dense`, and layers without experts: SGLang would give them experts too."""
        return super().unsupported(config) | {
            "mlp_only_layers": bool(config.get("mlp_only_layers")),
            "decoder_sparse_step": config.get("decoder_sparse_step", 1) != 1,
        }

    def layer_spec(self, architecture: Architecture, *, transformer_engine: bool) -> ModuleSpec:
        """Return the spec of `Dense`, with a router and a sequence of experts as MLP."""
        from actors.megatron.families.expert_layers import expert_spec

        spec = super().layer_spec(architecture, transformer_engine=transformer_engine)
        return expert_spec(architecture, spec, transformer_engine=transformer_engine)

    def layer_rules(self, architecture: Architecture, layer: int) -> dict[str, Rule]:
        """Return the rules of the attention, and of router and experts."""
        ours, theirs = f"decoder.layers.{layer}.mlp.", f"model.layers.{layer}.mlp."
        hidden, experts = architecture.hidden_size, architecture.experts
        assert experts is not None, "read() sets them"
        rules = {name: rule for name, rule in super().layer_rules(architecture, layer).items() if ours not in name}
        rules[ours + "router.weight"] = Copy.of(theirs + "gate.weight", experts.count, hidden)
        wide = experts.ffn_hidden_size
        for expert in range(experts.count):
            inside, outside = f"{ours}experts.local_experts.{expert}.", f"{theirs}experts.{expert}."
            gate_up = (outside + "gate_proj.weight", outside + "up_proj.weight")
            rules[inside + "linear_fc1.weight"] = GateUp.of(gate_up, wide, hidden)
            rules[inside + "linear_fc2.weight"] = Copy.of(outside + "down_proj.weight", hidden, wide, cut=1)
        return rules
