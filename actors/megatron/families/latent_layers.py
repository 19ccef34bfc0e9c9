"""Multi-head latent attention on Megatron-core: the layer spec, the config, and the gradient of the shared key."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.tensor_parallel.mappings import (
    gather_from_tensor_model_parallel_region,
    scatter_to_sequence_parallel_region,
)
from megatron.core.transformer import multi_latent_attention
from megatron.core.transformer.multi_latent_attention import MLASelfAttention
from megatron.core.transformer.spec_utils import ModuleSpec
from torch import Tensor

from actors.megatron.attention import PackedAttention, PackedSequences
from actors.megatron.families.architecture import Architecture


def latent_spec(*, transformer_engine: bool) -> ModuleSpec:
    """Return a dense layer with multi-head latent attention and a norm on each latent vector."""
    kinds = {"qk_layernorm": True, "multi_latent_attention": True}
    if transformer_engine:
        spec = gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec(**kinds)
    else:
        # Megatron believes in Transformer Engine because its own wrapper can be imported, and asks for its classes.
        multi_latent_attention.HAVE_TE = False
        spec = gpt_layer_specs.get_gpt_layer_local_spec(**kinds, normalization="RMSNorm")
        spec.submodules.self_attention.submodules.core_attention = PackedAttention
    spec.submodules.self_attention.module = SharedKeyAttention
    return spec


def latent_config(architecture: Architecture) -> dict[str, object]:
    """Return the fields of Megatron's MLATransformerConfig for latent attention; nothing for another attention."""
    if architecture.latent is None:
        return {}
    return {
        "rope_type": "rope",
        "mscale": 1.0,
        "mscale_all_dim": 0.0,
        **architecture.latent.as_flags(),
        "rotary_base": architecture.rotary_base,
        "rotary_percent": 1.0,
        "rotary_interleaved": False,  # Megatron takes neighbouring values apart before it rotates halves
        "apply_rope_fusion": False,
        # With it Megatron sums the gradients of every `q_layernorm` over tensor parallel ranks, which have other heads.
        # Here each rank has the whole gradient already. The layer's spec alone gives the norms.
        "qk_layernorm": False,
    }


class SharedKeyAttention(MLASelfAttention):  # type: ignore[misc]  # Megatron's class is not typed
    """Megatron's latent attention, with the whole gradient of the key that all heads share, and for prefix trees.

    Tensor parallel ranks have different heads, so each has only a part of this gradient. Megatron-core 0.16.1 does not
    add the parts up, which makes the gradient of `linear_kv_down_proj` wrong.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.linear_kv_down_proj.register_forward_hook(self._gather)
        self.rotary_pos_emb.register_forward_hook(self._select)
        self._positions: Tensor | None = None

    def forward(self, *args: Any, packed_seq_params: PackedSequences, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """Return (output, bias). Its RoPE has `PackedSequences.position_ids`."""
        self._positions = packed_seq_params.position_ids
        output: tuple[Tensor, Tensor | None] = super().forward(*args, packed_seq_params=packed_seq_params, **kwargs)
        return output

    def _select(self, _: torch.nn.Module, __: object, angles: Any) -> Any:
        """Return the angles of each token's position; those of yarn have a scale beside them."""
        if self._positions is None:
            return angles
        if isinstance(angles, tuple):
            return angles[0].index_select(0, self._positions), *angles[1:]
        return angles.index_select(0, self._positions)

    def _gather(self, _: torch.nn.Module, __: object, output: tuple[Tensor, None]) -> tuple[Tensor, None]:
        """Return the whole output of the projection, [tokens, 1, latent + rotated].

        With sequence parallelism it is this rank's tokens, and Megatron gathers the key: its backward pass adds up.
        """
        down, bias = output
        config, group = self.config, self.pg_collection.tp
        if group.size() == 1:
            return output
        if down.size(-1) != config.kv_lora_rank + config.qk_pos_emb_head_dim:
            down = gather_from_tensor_model_parallel_region(down)
            if config.sequence_parallel:
                down = scatter_to_sequence_parallel_region(down)
        if not config.sequence_parallel:
            latent, key = torch.split(down, [config.kv_lora_rank, config.qk_pos_emb_head_dim], -1)
            down = torch.cat([latent, _SumGradient.apply(key, group)], -1)  # type: ignore[no-untyped-call]
        return down, bias


class _SumGradient(torch.autograd.Function):
    """Add up a tensor's gradients of all ranks. Megatron's own function sums a copy if a gradient is not contiguous."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None
