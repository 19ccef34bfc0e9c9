"""GLM-4-0414 and GLM-Z1, dense: a norm after attention and after the MLP, and RoPE of a part of each head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from actors.megatron.families.architecture import Architecture
from actors.megatron.families.dense import Dense
from actors.megatron.families.rules import Copy, GateUp, Rule

if TYPE_CHECKING:
    from megatron.core.transformer.spec_utils import ModuleSpec


class Glm4(Dense):
    """GLM-4-9B-0414, GLM-4-32B-0414, GLM-Z1-9B-0414 and GLM-Z1-32B-0414."""

    model_class = "Glm4ForCausalLM"
    ignored = frozenset({"attention_bias"})

    def read(self, config: Mapping[str, Any], where: str) -> Architecture:
        """Return the architecture. Neighbouring values of a head rotate together, in its first part."""
        return replace(
            super().read(config, where),
            add_qkv_bias=bool(config.get("attention_bias", False)),
            post_norms=True,
            rotary_percent=rotary_part(config),
            rotary_interleaved=True,
        )

    def layer_spec(self, architecture: Architecture, layer: int, *, transformer_engine: bool) -> ModuleSpec:
        """Return the spec of `Dense`, with a norm after attention and after the MLP."""
        from actors.megatron.families.norm import with_post_norm

        spec = super().layer_spec(architecture, layer, transformer_engine=transformer_engine)
        parts = spec.submodules
        parts.self_attention, parts.mlp = with_post_norm(parts.self_attention), with_post_norm(parts.mlp)
        return spec

    def layer_rules(self, architecture: Architecture, layer: int) -> dict[str, Rule]:
        """Return the rules of `Dense`. A checkpoint has gate and up in one tensor."""
        ours, theirs = f"decoder.layers.{layer}.", f"model.layers.{layer}."
        hidden = architecture.hidden_size
        return super().layer_rules(architecture, layer) | {
            ours + "mlp.linear_fc1.weight": GateUp.of(
                (theirs + "mlp.gate_up_proj.weight",), architecture.ffn_hidden_size, hidden
            ),
            ours + "self_attention.post_norm.weight": Copy.of(theirs + "post_self_attn_layernorm.weight", hidden),
            ours + "mlp.post_norm.weight": Copy.of(theirs + "post_mlp_layernorm.weight", hidden),
        }


def rotary_part(config: Mapping[str, Any], default: float = 0.5) -> float:
    """Return the part of each head that rotates, from either format of a GLM's config.json, or its class's default."""
    rope = config.get("rope_parameters") or {}
    return float(rope.get("partial_rotary_factor", config.get("partial_rotary_factor", default)))
