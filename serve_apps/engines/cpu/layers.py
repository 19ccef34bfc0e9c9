"""SGLang's native layers on a CPU: matrix products whose rows do not depend on the batch, and norms in fewer passes.

For products of a few rows BLAS uses other kernels, with another order of summation. Measured with MKL 2024 on AVX-512
over the shapes of the demo and of SmolLM2-135M: from 16 rows on every row has the same bits. So fewer rows are padded
to `ROWS`, which costs nothing at the batch sizes of a rollout. RMSNorm and the rotary embedding run in half the passes
over memory, with the same bits: a small model's decode step has hundreds of operations on tensors of a few kilobytes,
so the number of operations dominates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from sglang.srt.layers.layernorm import RMSNorm
    from sglang.srt.layers.logits_processor import LogitsProcessor
    from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod
    from sglang.srt.layers.rotary_embedding.base import RotaryEmbedding

ROWS = 16


def padded_rows(x: torch.Tensor) -> torch.Tensor:
    """Return x [rows, features] with zero rows added up to `ROWS`."""
    return torch.nn.functional.pad(x, (0, 0, 0, ROWS - x.shape[0]))


def linear(
    original: Callable[..., torch.Tensor],
    method: UnquantizedLinearMethod,
    layer: torch.nn.Module,
    x: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Around hook of `UnquantizedLinearMethod.apply`."""
    if x.dim() != 2 or x.shape[0] >= ROWS:
        return original(method, layer, x, bias)
    return original(method, layer, padded_rows(x), bias)[: x.shape[0]]


def lm_head(
    original: Callable[..., torch.Tensor],
    processor: LogitsProcessor,
    hidden: torch.Tensor,
    *rest: object,
    **options: object,
) -> torch.Tensor:
    """Around hook of `LogitsProcessor._compute_lm_head`. hidden [rows, features] -> logits [rows, vocabulary]."""
    if hidden.shape[0] >= ROWS:
        return original(processor, hidden, *rest, **options)
    options.pop("out", None)  # its shape is that of the rows before padding
    return original(processor, padded_rows(hidden), *rest, **options)[: hidden.shape[0]]


def rms_norm(
    original: Callable[..., Any],
    norm: RMSNorm,
    x: torch.Tensor,
    residual: torch.Tensor | None = None,
    post_residual_addition: torch.Tensor | None = None,
    quant_linear: torch.nn.Module | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Around hook of `RMSNorm.forward_native`, if everything is float32. x, residual [..., features]."""
    is_plain = norm.variance_size_override is None and post_residual_addition is None
    float32 = x.dtype is norm.weight.dtype is torch.float32 and (residual is None or residual.dtype is torch.float32)
    if not (is_plain and float32):
        unchanged: torch.Tensor = original(norm, x, residual, post_residual_addition, quant_linear)
        return unchanged
    if residual is not None:
        x = x + residual
    scale = x.pow(2).mean(-1, True).add_(norm.variance_epsilon).rsqrt_()
    normed = (x * scale).mul_(norm.weight)
    return normed if residual is None else (normed, x)


def rotary_embedding(
    original: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    rope: RotaryEmbedding,
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    offsets: torch.Tensor | None = None,
    fused_set_kv_buffer_arg: object = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Around hook of `RotaryEmbedding.forward_native`, for whole heads whose halves are rotated against each other.

    positions [rows]; query, key [rows, heads * head_size].
    """
    whole = rope.is_neox_style and rope.rotary_dim == rope.head_size and not hasattr(rope, "sin_cos_cache")
    if not whole or offsets is not None or fused_set_kv_buffer_arg is not None:
        return original(rope, positions, query, key, offsets, fused_set_kv_buffer_arg)
    cos, sin = rope.cos_sin_cache.index_select(0, positions.flatten()).to(query.dtype).unsqueeze(1).chunk(2, dim=-1)
    cos, sin = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
    return _rotated(query, cos, sin), _rotated(key, cos, sin)


def latent_rope(
    original: Callable[..., torch.nn.Module],
    head_size: int,
    rotary_dim: int,
    max_position: int,
    base: int,
    is_neox_style: bool = True,
    rope_scaling: dict[str, Any] | None = None,
    *rest: Any,
) -> torch.nn.Module:
    """Around hook of `get_rope_cpu`, which latent attention calls. Without scaling, SGLang's general RoPE serves."""
    if rope_scaling is not None:
        return original(head_size, rotary_dim, max_position, base, is_neox_style, rope_scaling, *rest)
    from sglang.srt.layers.rotary_embedding import get_rope

    rope: torch.nn.Module = get_rope(head_size, rotary_dim, max_position, base, is_neox_style, None, *rest[:2])
    return rope


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate x [rows, heads * size] by cos [rows, 1, size]; sin has the same shape, negated in its first half."""
    heads = x.view(x.shape[0], -1, cos.shape[-1])
    swapped = heads.roll(cos.shape[-1] // 2, dims=-1)
    return (heads * cos).add_(swapped.mul_(sin)).reshape(x.shape)
