"""`Dense`: RMSNorm, RoPE, grouped-query attention and SwiGLU, which most dense families share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from actors.megatron.families.architecture import Architecture
from actors.megatron.families.prediction_names import PredictionNames
from actors.megatron.families.rules import Copy, GateUp, Qkv, Rule
from schemas.errors import CheckpointMismatch

if TYPE_CHECKING:
    from megatron.core.transformer.spec_utils import ModuleSpec


class Dense:
    """A `Family` of dense decoders. A subclass says how it differs."""

    model_class: ClassVar[str]
    """Its name in config.json."""
    qk_layernorm: ClassVar[bool] = False
    add_qkv_bias: ClassVar[bool] = False
    served_tied: ClassVar[bool] = True
    prediction: ClassVar[PredictionNames] = PredictionNames()
    ignored: ClassVar[frozenset[str]] = frozenset()
    """Values of config.json that this family reads otherwise, or that do not change its results."""

    def read(self, config: Mapping[str, Any], where: str) -> Architecture:
        """Return the architecture of a parsed config.json. Raises CheckpointMismatch."""
        if reasons := [reason for reason, is_so in self.unsupported(config).items() if is_so]:
            raise CheckpointMismatch(f"{where}: not supported by the trainer: {', '.join(reasons)}")
        heads = config["num_attention_heads"]
        rotary_base, scaling_factor = self.rope(config, where)
        return Architecture(
            model_class=self.model_class,
            num_layers=config["num_hidden_layers"],
            hidden_size=config["hidden_size"],
            ffn_hidden_size=config["intermediate_size"],
            num_attention_heads=heads,
            num_query_groups=config.get("num_key_value_heads") or heads,
            kv_channels=config.get("head_dim") or config["hidden_size"] // heads,
            vocab_size=config["vocab_size"],
            max_position_embeddings=config.get("max_position_embeddings", 4096),
            norm_epsilon=config.get("rms_norm_eps", 1e-6),
            rotary_base=rotary_base,
            rope_scaling_factor=scaling_factor,
            qk_layernorm=self.qk_layernorm,
            add_qkv_bias=self.add_qkv_bias,
            tied=bool(config.get("tie_word_embeddings", False)),
            prediction_layers=config.get("num_nextn_predict_layers") or 0,
        )

    def rope(self, config: Mapping[str, Any], where: str) -> tuple[float, float | None]:
        """Return RoPE's base, and the factor of Llama 3's scaling or None. Raises CheckpointMismatch."""
        return _rope(config, where)

    def unsupported(self, config: Mapping[str, Any]) -> dict[str, bool]:
        """Return whether each setting that the trainer cannot follow is on, by its text for the user."""
        act = config.get("hidden_act", "silu")
        switches = [name for name in ("attention_bias", "mlp_bias", "use_sliding_window") if name not in self.ignored]
        return {f"hidden_act {act} (silu is supported)": act != "silu"} | {
            name: bool(config.get(name)) for name in switches
        }

    def layer_spec(self, architecture: Architecture, layer: int, *, transformer_engine: bool) -> ModuleSpec:
        """Return Transformer Engine's layer, or Megatron's own with `PackedAttention`."""
        from megatron.core.models.gpt import gpt_layer_specs

        from actors.megatron.attention import PackedAttention

        norms = architecture.qk_layernorm
        if transformer_engine:
            return gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec(qk_layernorm=norms)
        spec = gpt_layer_specs.get_gpt_layer_local_spec(qk_layernorm=norms, normalization="RMSNorm")
        spec.submodules.self_attention.submodules.core_attention = PackedAttention
        return spec

    def layer_rules(self, architecture: Architecture, layer: int) -> dict[str, Rule]:
        """Return the rules of a layer by Megatron name, for Megatron's own layers and for Transformer Engine's."""
        ours, theirs = f"decoder.layers.{layer}.", f"model.layers.{layer}."
        hidden, head, groups = architecture.hidden_size, architecture.kv_channels, architecture.num_query_groups
        wide = architecture.ffn_hidden_size
        queries, keys = architecture.num_attention_heads * head, groups * head
        attention, mlp = ours + "self_attention.", theirs + "mlp."

        def qkv(kind: str, *inputs: int) -> Rule:
            query, key, value = (f"{theirs}self_attn.{letter}_proj.{kind}" for letter in "qkv")
            return Qkv.of((query, key, value), ((queries, *inputs), (keys, *inputs), (keys, *inputs)), groups)

        input_norm = Copy.of(theirs + "input_layernorm.weight", hidden)
        mlp_norm = Copy.of(theirs + "post_attention_layernorm.weight", hidden)
        gate_up = (mlp + "gate_proj.weight", mlp + "up_proj.weight")
        rules: dict[str, Rule] = {
            ours + "input_layernorm.weight": input_norm,
            attention + "linear_qkv.layer_norm_weight": input_norm,
            attention + "linear_qkv.weight": qkv("weight", hidden),
            attention + "linear_proj.weight": Copy.of(theirs + "self_attn.o_proj.weight", hidden, queries, cut=1),
            ours + "pre_mlp_layernorm.weight": mlp_norm,
            ours + "mlp.linear_fc1.layer_norm_weight": mlp_norm,
            ours + "mlp.linear_fc1.weight": GateUp.of(gate_up, wide, hidden),
            ours + "mlp.linear_fc2.weight": Copy.of(mlp + "down_proj.weight", hidden, wide, cut=1),
        }
        if architecture.add_qkv_bias:
            rules[attention + "linear_qkv.bias"] = qkv("bias")
        for letter in "qk" if architecture.qk_layernorm else "":
            rules[f"{attention}{letter}_layernorm.weight"] = Copy.of(f"{theirs}self_attn.{letter}_norm.weight", head)
        return rules


def _rope(config: Mapping[str, Any], where: str) -> tuple[float, float | None]:
    """Return (base, Llama 3 scaling factor or None) from either format of config.json."""
    rope: Mapping[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    base = float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return base, None
    # Megatron supports Llama 3's scaling only with these three values.
    fixed = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    if kind != "llama3" or any(rope.get(name, value) != value for name, value in fixed.items()):
        raise CheckpointMismatch(f"{where}: RoPE scaling {dict(rope)} is not supported (default and llama3 are)")
    return base, float(rope["factor"])
