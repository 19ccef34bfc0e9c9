"""`Architecture`: the sizes of a decoder, by Megatron's terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from actors.megatron.families.experts import Experts, layers_with_experts
from actors.megatron.families.latent import LatentAttention
from schemas.doc import doc
from schemas.errors import CheckpointMismatch

SAME_NAMES = (
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels",
    "qk_layernorm", "add_qkv_bias", "rotary_interleaved",
)  # fmt: skip
"""Fields that have the same name in `Architecture`, in Megatron's flags and in its config."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder with RMSNorm, RoPE, grouped-query or latent attention, and SwiGLU.

    Sizes are those of the whole model, before it is cut over ranks.
    """

    model_class: Annotated[str, doc("Its name in config.json, the key of `FAMILIES`.")]
    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: Annotated[int, doc("Query heads.")]
    num_query_groups: Annotated[int, doc("Key and value heads.")]
    kv_channels: Annotated[int, doc("Size of an attention head.")]
    vocab_size: int
    max_position_embeddings: Annotated[int, doc("Longest sequence, in tokens.")]
    norm_epsilon: float
    rotary_base: float
    rope_scaling_factor: Annotated[float | None, doc("Factor of Llama 3's RoPE scaling; None without.")]
    qk_layernorm: Annotated[bool, doc("RMSNorm on each query and key head.")]
    add_qkv_bias: bool
    tied: Annotated[bool, doc("The output layer shares the embedding's weights.")]
    experts: Annotated[Experts | None, doc("Replace the MLP of layers; None if the model is dense.")] = None
    rotary_percent: Annotated[float, doc("Part of each head that rotates; its first values.")] = 1.0
    post_norms: Annotated[bool, doc("RMSNorm of the outputs of attention and of the MLP.")] = False
    prediction_layers: Annotated[int, doc("Multi-token prediction layers after the last layer of its checkpoint.")] = 0
    trains_prediction: Annotated[bool, doc("The trainer has the prediction layer, and trains it.")] = False
    rotary_interleaved: Annotated[bool, doc("Neighbouring values rotate together; else those half a head apart.")] = (
        False
    )
    needs_own_code: Annotated[bool, doc("transformers reads its config.json only with code of the checkpoint.")] = False
    latent: Annotated[LatentAttention | None, doc("Replaces grouped-query attention; None without.")] = None

    @property
    def active_ffn_size(self) -> int:
        """Inner size of the MLPs of a layer that process a token, together; the mean of all layers."""
        experts = self.experts
        if experts is None:
            return self.ffn_hidden_size
        mixed = experts.per_token * experts.ffn_hidden_size + experts.shared_ffn_hidden_size
        dense = min(experts.first_dense, self.num_layers)
        return (dense * self.ffn_hidden_size + (self.num_layers - dense) * mixed) // self.num_layers

    def has_experts(self, layer: int) -> bool:
        """Return whether the layer with this number, from 0 on, has experts in place of the MLP."""
        return self.experts is not None and self.experts.in_layer(layer)

    @property
    def attention_weights(self) -> int:
        """Weights of a layer's attention, without biases and norms."""
        if self.latent is not None:
            return self.latent.weights(self.hidden_size, self.num_attention_heads)
        return 2 * self.hidden_size * self.kv_channels * (self.num_attention_heads + self.num_query_groups)

    @property
    def attention_width(self) -> int:
        """Multiply-adds of all heads for a pair of query and key, over two: for the score and for the value."""
        value = self.kv_channels if self.latent is None else self.latent.value_size
        return self.num_attention_heads * (self.kv_channels + value) // 2

    @property
    def key_value_size(self) -> int:
        """Values of a token's keys and values in a layer, as attention takes them."""
        value = self.kv_channels if self.latent is None else self.latent.value_size
        return self.num_query_groups * (self.kv_channels + value)

    @property
    def layer_values(self) -> int:
        """Estimate the values per token that a layer keeps for backward: 14 of hidden size, 5 of feed-forward size.

        Heads of latent attention are wider than the hidden state, which is counted for four of their tensors.
        """
        usual = 14 * self.hidden_size + 5 * self.active_ffn_size
        wider = 2 * self.attention_width + self.key_value_size - 4 * self.hidden_size
        return usual if self.latent is None else usual + max(0, wider)

    def check_flags(self, flags: Mapping[str, object]) -> None:
        """Compare Megatron's architecture flags (slime's MODEL_ARGS), by name, with the checkpoint.

        Other flags are ignored. Raises CheckpointMismatch with every flag that disagrees and both values.
        """
        expected = self.as_flags()
        wrong = [
            f"--{name.replace('_', '-')} {flags[name]} (the checkpoint says {expected[name]})"
            for name in sorted(flags.keys() & expected.keys())
            if not _same(_read(name, flags[name], self.num_layers), expected[name])
        ]
        if wrong:
            raise CheckpointMismatch(
                "model flags disagree with the checkpoint's config.json: " + "; ".join(wrong) + ". Leave them out, or "
                "give the checkpoint that they describe"
            )

    def as_flags(self) -> dict[str, object]:
        """Return Megatron's architecture flags by name, with this architecture's values."""
        names = (*SAME_NAMES, "vocab_size", "norm_epsilon", "rotary_base", "rotary_percent")
        # Latent attention has its own sizes and no biases of this name, and slime's scripts set any values for these.
        unread = ("kv_channels", "add_qkv_bias") if self.latent else ()
        same = {name: getattr(self, name) for name in names if name not in unread}
        return same | {
            "group_query_attention": self.num_query_groups != self.num_attention_heads,
            "layernorm_epsilon": self.norm_epsilon,
            "padded_vocab_size": self.vocab_size,
            "mtp_num_layers": self.prediction_layers or None,
            "post_self_attn_layernorm": self.post_norms,
            "post_mlp_layernorm": self.post_norms,
            "use_rope_scaling": self.rope_scaling_factor is not None,
            "rope_scaling_factor": self.rope_scaling_factor or 8.0,
            "untie_embeddings_and_output_weights": not self.tied,
            "swiglu": True,
            "gated_linear_unit": True,
            "normalization": "RMSNorm",
            "add_bias_linear": False,
            "disable_bias_linear": True,
            "use_rotary_position_embeddings": True,
            "position_embedding_type": "rope",
            **(self._without_latent() if self.latent is None else self.latent.as_flags()),
            **({"num_moe_experts": None} if self.experts is None else self.experts.as_flags(self.num_layers)),
        }

    def _without_latent(self) -> dict[str, object]:
        """Return flags of latent attention. slime's scripts of Llama 3.1 set the scaling factor by its name too."""
        return {"multi_latent_attention": False, "rotary_scaling_factor": self.rope_scaling_factor or 1.0}


def _read(name: str, value: object, num_layers: int) -> object:
    """Return a flag's value in the form that `as_flags` has it in."""
    return layers_with_experts(value, num_layers) if name == "moe_layer_freq" else value


def _same(value: object, expected: object) -> bool:
    if isinstance(expected, bool) or isinstance(value, bool):
        return value is expected
    if isinstance(expected, int | float):
        try:
            return abs(float(value) - expected) <= 1e-9 * abs(expected)  # type: ignore[arg-type]  # TypeError is False
        except (TypeError, ValueError):
            return False
    return bool(value == expected)
