"""Causal attention over packed sequences with torch's kernels, as a Megatron core attention.

Megatron's own local attention does not support packed (THD) input. `attention_kernel` chooses between torch's attention
over packed tokens and its scaled_dot_product_attention over grids. For grids, the sequences of a micro batch are laid
out in a few right-padded grids of similar length, with one attention call each. Padding comes last, so that the causal
mask alone keeps it out of every real token, forward and backward; all other layers see no padding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.attention import Attention
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from actors.megatron.attention_kernel import (
    AttentionCall,
    AttentionKernel,
    capability_of,
    kernel_for,
    varlen_attention,
)
from actors.megatron.prediction import Prediction
from actors.megatron.router_choices import Routing
from actors.megatron.voters import Voters
from actors.step.log_probs import Layer
from schemas.doc import doc

Ints = npt.NDArray[np.int64]
# Shortest sequence of a grid, as a share of its longest; it bounds the padding.
GRID_SHARE = 0.75


@dataclass
class PackedSequences(PackedSeqParams):  # type: ignore[misc]  # Megatron's class is not typed
    """Megatron's THD parameters, with layouts that are computed once per micro batch for all layers.

    cu_seqlens_q and cu_seqlens_kv are on the host: Megatron's RoPE reads them in Python, for queries and keys of each
    layer, and each read from a device would wait for the device.
    """

    ends: Annotated[
        Tensor | None,
        doc("int32 [sequences + 1]: cu_seqlens on the device, for kernels; None if lengths do not define what is seen"),
    ] = None
    grids: Annotated[tuple[tuple[int, int], ...], doc("(sequences, longest) of each grid")] = ()
    to_grid: Annotated[
        Tensor | None, doc("int64 [slots of all grids]: packed token of each slot; any token for padding")
    ] = None
    from_grid: Annotated[Tensor | None, doc("int64 [tokens]: slot of each packed token")] = None
    position_ids: Annotated[
        Tensor | None, doc("int64 [tokens]: position of each token for RoPE; None: its place in its sequence")
    ] = None
    rows: Annotated[Tensor | None, doc("int64 [rows]: packed positions that need logits; None for all")] = None
    by_rows: Annotated[
        Callable[[Layer, Tensor], Any] | None,
        doc("Called with the output layer and the rows' hidden states [rows, hidden]; its result replaces the logits."),
    ] = None
    routing: Annotated[Routing | None, doc("Records or gives the experts of each token; None: routers choose.")] = None
    voters: Annotated[Voters | None, doc("The real tokens; None if all are.")] = None
    prediction: Annotated[Prediction | None, doc("Targets of the prediction layer; None if it is not passed.")] = None

    @classmethod
    def of(cls, lengths: Sequence[int], rows: Tensor | None, device: torch.device) -> PackedSequences:
        """Return parameters for sequences of these lengths (in tokens, at least 1), packed in this order."""
        sizes = np.asarray(lengths)
        grids, to_grid, from_grid = lay_out(alike(sizes), np.cumsum(sizes) - sizes, sizes)
        ends = torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
        return cls(
            qkv_format="thd",
            cu_seqlens_q=ends,
            cu_seqlens_kv=ends,
            max_seqlen_q=max(lengths),
            max_seqlen_kv=max(lengths),
            ends=ends.to(device),
            grids=grids,
            to_grid=torch.from_numpy(to_grid).to(device),
            from_grid=torch.from_numpy(from_grid).to(device),
            rows=rows,
        )

    @property
    def masks(self) -> Sequence[Tensor | None]:
        """Mask per grid, [sequences, 1, queries, keys]: 0 for a key that a query sees, else -inf. None: causal."""
        return [None] * len(self.grids)

    @property
    def has_own_masks(self) -> bool:
        """Whether lengths alone do not define what a token sees."""
        return self.ends is None

    def inputs(self, token_ids: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ids and positions that this rank passes through the model, int64 [1, tokens]."""
        return token_ids, position_ids

    def own_targets(self, targets: Tensor, kept: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the targets of `rows`, with their pairs of `MicroBatch.kept`."""
        return targets, kept

    def of_all_targets(self, values: Tensor) -> Tensor:
        """Return the values of all targets, [rows] -> [targets]."""
        return values

    def of_own_tokens(self, values: Tensor, fill: int) -> Tensor:
        """Return the values of this rank's tokens, [tokens, ...] -> [this rank's tokens, ...]; `fill` for padding."""
        missing = int(self.cu_seqlens_q[-1]) - len(values)
        return torch.cat([values, values.new_full((missing, *values.shape[1:]), fill)]) if missing else values

    def of_all_tokens(self, values: Tensor) -> Tensor:
        """Return the values of all tokens, [this rank's tokens, ...] -> [tokens, ...]."""
        return values

    def of_all_ranks(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values of all ranks that have a part of these sequences."""
        return key, value

    def queries(self, tokens: Tensor) -> Sequence[Tensor]:
        """Lay out [tokens, heads, size] as grids, [sequences, longest, heads, size] each."""
        return to_grids(tokens, self.grids, self.to_grid, self.from_grid)

    def keys(self, tokens: Tensor) -> Sequence[Tensor]:
        """Lay out keys or values as grids like `queries`; here a query sees only its own sequence."""
        return self.queries(tokens)


def give_ends_to_kernels(model: torch.nn.Module) -> None:
    """Pass `PackedSequences.ends` as cu_seqlens to Transformer Engine's attention and to its fused RoPE.

    The layer calls the fused RoPE before the attention.
    """
    for layer in model.modules():
        if isinstance(layer, Attention):
            reader = layer if layer.config.apply_rope_fusion else layer.core_attention
            if not isinstance(reader, PackedAttention):
                reader.register_forward_pre_hook(_with_ends, with_kwargs=True)


def _with_ends(
    module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, Any]
) -> tuple[tuple[object, ...], dict[str, Any]]:
    packed = kwargs["packed_seq_params"]
    ends = {"cu_seqlens_q": packed.ends, "cu_seqlens_kv": packed.ends}
    return args, {**kwargs, "packed_seq_params": replace(packed, **ends)}


def alike(lengths: Ints) -> list[Ints]:
    """Group sequences of similar length, in order of decreasing length; a group shares a grid."""
    order = np.argsort(-lengths, kind="stable")
    grids, begin = [], 0
    while begin < len(order):
        end = begin + int((lengths[order[begin:]] >= GRID_SHARE * lengths[order[begin]]).sum())
        grids.append(order[begin:end])
        begin = end
    return grids


def lay_out(members: Sequence[Ints], starts: Ints, lengths: Ints) -> tuple[tuple[tuple[int, int], ...], Ints, Ints]:
    """Return (grids, to_grid, from_grid) of `PackedSequences`. members: the sequences of each grid."""
    grids: list[tuple[int, int]] = []
    to_grid = []
    from_grid = np.empty(lengths.sum(), dtype=np.int64)
    base = 0
    for chosen in members:
        column = np.arange(lengths[chosen].max())
        tokens = starts[chosen, None] + np.minimum(column, lengths[chosen, None] - 1)
        slots = base + np.arange(tokens.size).reshape(tokens.shape)
        real = column < lengths[chosen, None]
        from_grid[tokens[real]] = slots[real]
        to_grid.append(tokens.reshape(-1))
        grids.append((len(chosen), len(column)))
        base += tokens.size
    return tuple(grids), np.concatenate(to_grid).astype(np.int64), from_grid


def to_grids(
    tokens: Tensor, grids: Sequence[tuple[int, int]], to_grid: Tensor | None, from_grid: Tensor | None
) -> Sequence[Tensor]:
    """Lay out [tokens, heads, size] as grids, by indices as those of `PackedSequences`."""
    slots = [rows * columns for rows, columns in grids]
    laid: Tensor = _ToGrid.apply(tokens, to_grid, from_grid)  # type: ignore[no-untyped-call]
    parts = torch.split(laid, slots)
    return [part.view(*grid, *tokens.shape[1:]) for grid, part in zip(grids, parts, strict=True)]


def mask_of(column: Ints, last_seen: Ints) -> Tensor:
    """Return a mask that is added to scores, float32 [sequences, 1, queries, keys].

    All layers share this mask. From a mask of bools, each layer would make and keep its own copy.
    """
    hidden = torch.from_numpy(column > last_seen[:, None, :, None])
    return torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)


def takes_groups(query: Tensor) -> bool:
    """Return whether a memory-efficient kernel supports fewer key heads than query heads.

    In float32 on CUDA none does: torch would fall back to matrix products, whose memory is quadratic in the length.
    """
    return not (query.is_cuda and query.dtype == torch.float32)


def in_grids(query: Tensor, key: Tensor, value: Tensor, packed: PackedSequences, scale: float | None) -> Tensor:
    """Compute attention grid by grid.

    query [tokens, heads, size], key and value [tokens, groups, size] -> [tokens, heads * size].
    """
    masks = [None if mask is None else mask.to(query.dtype) for mask in packed.masks]
    key, value = packed.of_all_ranks(key, value)
    times = query.size(1) // key.size(1)
    if times > 1 and not takes_groups(query):
        key, value = (tensor.repeat_interleave(times, 1) for tensor in (key, value))
    grids = packed.queries(query), packed.keys(key), packed.keys(value), masks
    grouped = query.size(1) != key.size(1)
    outputs = []
    for *qkv, seen in zip(*grids, strict=True):
        q, k, v = (tensor.transpose(1, 2) for tensor in qkv)
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, is_causal=seen is None, scale=scale, enable_gqa=grouped
        )
        outputs.append(mixed.transpose(1, 2).reshape(q.size(0) * q.size(2), -1))
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    packed_output: Tensor = _FromGrid.apply(joined, packed.to_grid, packed.from_grid)  # type: ignore[no-untyped-call]
    return packed_output


def in_varlen(query: Tensor, key: Tensor, value: Tensor, packed: PackedSequences, scale: float | None) -> Tensor:
    """Compute attention over all packed tokens at once; shapes as in `in_grids`."""
    attend = varlen_attention()
    assert attend is not None, "kernel_for checks this"
    ends, longest = packed.ends, packed.max_seqlen_q
    grouped = query.size(1) != key.size(1)
    # This window, a token and all tokens before it, selects causal attention.
    mixed = attend(
        query, key, value, ends, ends, longest, longest, scale=scale, window_size=(-1, 0), enable_gqa=grouped
    )
    return mixed.flatten(1)


KERNELS: Mapping[AttentionKernel, Callable[[Tensor, Tensor, Tensor, PackedSequences, float | None], Tensor]] = {
    AttentionKernel.GRIDS: in_grids,
    AttentionKernel.VARLEN: in_varlen,
}


class PackedAttention(MegatronModule):  # type: ignore[misc]
    """Core attention of a layer spec, with Megatron's keyword arguments. Dropout is not supported."""

    def __init__(self, config: TransformerConfig, softmax_scale: float | None = None, **layer: object) -> None:
        """layer: other arguments that a spec passes to a core attention, which are ignored."""
        super().__init__(config=config)
        self.softmax_scale = softmax_scale

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *_: object, packed_seq_params: PackedSequences, **layer: object
    ) -> Tensor:
        """Compute attention; shapes as in `in_grids`, but values may be smaller than keys, as in latent attention.

        Kernels are fast only for heads of one size, so that smaller values are filled up with zeros.
        """
        size, value_size = query.size(-1), value.size(-1)
        if value_size < size:
            filled = self.attend(query, key, F.pad(value, (0, size - value_size)), packed_seq_params)
            return torch.unflatten(filled, -1, (-1, size))[..., :value_size].flatten(1)
        return self.attend(query, key, value, packed_seq_params)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, packed: PackedSequences) -> Tensor:
        """Compute attention with the best kernel for the call; shapes as in `in_grids`."""
        capability = capability_of(query.device)
        call = AttentionCall(
            capability=capability,
            dtype=query.dtype,
            head_size=query.size(-1),
            sequences=len(packed.cu_seqlens_q) - 1,
            shares=packed.has_own_masks,
            has_varlen=capability is not None and varlen_attention() is not None,
        )
        return KERNELS[kernel_for(call)](query, key, value, packed, self.softmax_scale)


class _ToGrid(torch.autograd.Function):
    """Packed tokens to slots. The gradient of a padding slot is exactly 0, so that backward is a plain gather."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, to_grid: Tensor, from_grid: Tensor) -> Tensor:
        ctx.save_for_backward(from_grid)
        return tokens.index_select(0, to_grid)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad.index_select(0, ctx.saved_tensors[0]), None, None


class _FromGrid(torch.autograd.Function):
    """Slots to packed tokens. Backward leaves 0 in the padding slots."""

    @staticmethod
    def forward(ctx: Any, slots: Tensor, to_grid: Tensor, from_grid: Tensor) -> Tensor:
        ctx.save_for_backward(from_grid)
        ctx.slots = len(slots)
        return slots.index_select(0, from_grid)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        slots = grad.new_zeros(ctx.slots, *grad.shape[1:])
        return slots.index_copy_(0, ctx.saved_tensors[0], grad), None, None
