"""Megatron-LM's classic argument names that are not fields of megatron-core's config classes.

Where a megatron-core field means the same, the value goes there (`--disable-bias-linear` is `add_bias_linear = False`);
what describes the architecture keeps its name and is compared with the checkpoint by the trainer.
"""

from __future__ import annotations

from typing import NamedTuple

from slime_events.core.config.values import Kind, ValueType

_INT = ValueType((Kind.INT,))
_NUMBER = ValueType((Kind.INT, Kind.FLOAT))
_FLOAT = ValueType((Kind.FLOAT,))
_TEXT = ValueType((Kind.STR,))


class Classic(NamedTuple):
    """Where a classic flag's value goes, and its type; a switch without a word has its value in `constant`."""

    name: str
    type: ValueType | None = None
    constant: bool | str = True


CLASSIC: dict[str, Classic] = {
    "--swiglu": Classic("swiglu"),
    "--disable-bias-linear": Classic("add_bias_linear", constant=False),
    "--group-query-attention": Classic("group_query_attention"),
    "--norm-epsilon": Classic("norm_epsilon", _FLOAT),
    "--use-rotary-position-embeddings": Classic("use_rotary_position_embeddings"),
    "--position-embedding-type": Classic("position_embedding_type", _TEXT),
    "--rotary-base": Classic("rotary_base", _NUMBER),
    "--rotary-percent": Classic("rotary_percent", _FLOAT),
    "--use-rope-scaling": Classic("use_rope_scaling"),
    "--rope-scaling-factor": Classic("rope_scaling_factor", _FLOAT),
    "--untie-embeddings-and-output-weights": Classic("untie_embeddings_and_output_weights"),
    "--vocab-size": Classic("vocab_size", _INT),
    "--num-experts": Classic("num_moe_experts", _INT),
    "--make-vocab-size-divisible-by": Classic("make_vocab_size_divisible_by", _INT),
    "--seq-length": Classic("seq_length", _INT),
    "--max-position-embeddings": Classic("max_position_embeddings", _INT),
    "--accumulate-allreduce-grads-in-fp32": Classic("accumulate_allreduce_grads_in_fp32"),
    "--no-rope-fusion": Classic("apply_rope_fusion", constant=False),
    "--no-masked-softmax-fusion": Classic("masked_softmax_fusion", constant=False),
    "--no-bias-swiglu-fusion": Classic("bias_activation_fusion", constant=False),
    "--no-bias-gelu-fusion": Classic("bias_activation_fusion", constant=False),
    "--no-persist-layer-norm": Classic("persist_layer_norm", constant=False),
    "--no-check-for-nan-in-loss-and-grad": Classic("check_for_nan_in_grad", constant=False),
    "--attention-backend": Classic("attention_backend", _TEXT),
    "--use-flash-attn": Classic("attention_backend", constant="flash"),
    "--recompute-activations": Classic("recompute_granularity", constant="selective"),
    "--fp8-format": Classic("fp8", _TEXT),
    "--lr-warmup-init": Classic("lr_warmup_init", _FLOAT),
    "--lr-wsd-decay-style": Classic("lr_wsd_decay_style", _TEXT),
    "--lr-wsd-decay-iters": Classic("lr_wsd_decay_iters", _INT),
    "--start-weight-decay": Classic("start_weight_decay", _FLOAT),
    "--end-weight-decay": Classic("end_weight_decay", _FLOAT),
}
