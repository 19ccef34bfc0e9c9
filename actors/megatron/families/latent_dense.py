"""`LatentDense`: dense decoders with multi-head latent attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from actors.megatron.families.architecture import Architecture
from actors.megatron.families.dense import Dense
from actors.megatron.families.latent import LatentAttention, rope_of
from actors.megatron.families.rules import Copy, Rule

if TYPE_CHECKING:
    from megatron.core.transformer.spec_utils import ModuleSpec


class LatentDense(Dense):
    """The layers of a `Family` with latent attention."""

    def read(self, config: Mapping[str, Any], where: str) -> Architecture:
        """Return the architecture with its latent attention.

        The norms of the latent vectors have the epsilon of the other norms, as in SGLang and Megatron. transformers
        has 1e-6 there, which is the same value in DeepSeek's checkpoints.
        """
        dense, latent = super().read(config, where), LatentAttention.read(config, where)
        return replace(
            dense,
            latent=latent,
            num_query_groups=dense.num_attention_heads,
            kv_channels=latent.head_size,
            qk_layernorm=True,
        )

    def rope(self, config: Mapping[str, Any], where: str) -> tuple[float, None]:
        """Return the base of RoPE; `LatentAttention` has its scaling."""
        return float(rope_of(config).get("rope_theta") or config.get("rope_theta") or 10000.0), None

    def unsupported(self, config: Mapping[str, Any]) -> dict[str, bool]:
        """Return the conditions of `Dense`, and those of latent attention."""
        heads, keys = config["num_attention_heads"], config.get("num_key_value_heads")
        return super().unsupported(config) | {
            f"num_key_value_heads {keys} with num_attention_heads {heads}": keys not in (None, heads),
            "rope_interleave false": not config.get("rope_interleave", True),
        }

    def layer_spec(self, architecture: Architecture, layer: int, *, transformer_engine: bool) -> ModuleSpec:
        """Return the spec of a dense layer with latent attention."""
        from actors.megatron.families.latent_layers import latent_spec

        return latent_spec(transformer_engine=transformer_engine)

    def layer_rules(self, architecture: Architecture, layer: int) -> dict[str, Rule]:
        """Return the rules of `Dense` without its attention, and those of the latent attention."""
        rules = {
            name: rule
            for name, rule in super().layer_rules(architecture, layer).items()
            if ".self_attention." not in name
        }
        return rules | attention_rules(architecture, layer)


def attention_rules(architecture: Architecture, layer: int) -> dict[str, Rule]:
    """Return the rules of a latent attention. Transformer Engine has a norm within the projection that follows it."""
    from actors.megatron.cpu import has_transformer_engine

    ours, theirs = f"decoder.layers.{layer}.self_attention.", f"model.layers.{layer}.self_attn."
    latent, hidden, heads = architecture.latent, architecture.hidden_size, architecture.num_attention_heads
    assert latent is not None, "read() sets it"
    down = None if has_transformer_engine() else 0  # Transformer Engine's layer has a whole copy on each rank
    rank, values = latent.key_value_rank, heads * latent.value_size
    kv_norm = Copy.of(theirs + "kv_a_layernorm.weight", rank)
    kv_up = heads * (latent.unrotated_size + latent.value_size)
    rules: dict[str, Rule] = {
        ours + "linear_kv_down_proj.weight": Copy.of(
            theirs + "kv_a_proj_with_mqa.weight", rank + latent.rotated_size, hidden, cut=down
        ),
        ours + "kv_layernorm.weight": kv_norm,
        ours + "linear_kv_up_proj.layer_norm_weight": kv_norm,
        ours + "linear_kv_up_proj.weight": Copy.of(theirs + "kv_b_proj.weight", kv_up, rank, cut=0),
        ours + "linear_proj.weight": Copy.of(theirs + "o_proj.weight", hidden, values, cut=1),
    }
    queries = heads * latent.head_size
    if latent.query_rank is None:
        rules[ours + "linear_q_proj.weight"] = Copy.of(theirs + "q_proj.weight", queries, hidden, cut=0)
        return rules
    q_norm = Copy.of(theirs + "q_a_layernorm.weight", latent.query_rank)
    return rules | {
        ours + "linear_q_down_proj.weight": Copy.of(theirs + "q_a_proj.weight", latent.query_rank, hidden, cut=down),
        ours + "q_layernorm.weight": q_norm,
        ours + "linear_q_up_proj.layer_norm_weight": q_norm,
        ours + "linear_q_up_proj.weight": Copy.of(theirs + "q_b_proj.weight", queries, latent.query_rank, cut=0),
    }
