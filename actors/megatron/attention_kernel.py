"""`kernel_for`: choose the kernel for attention over packed sequences. No other place decides this."""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, cast

import torch
from torch import Tensor

from schemas.doc import doc

Varlen = Callable[..., Tensor]
"""`torch.nn.attention.varlen.varlen_attn`."""
KEYWORDS = ("window_size", "enable_gqa")
"""Keywords of `Varlen` that an older torch does not have."""
LARGEST_HEAD = 192
"""Largest head size. Flash attention supports 256, but on some GPUs only without a gradient."""
CAPABILITY = (8, 0)
"""Lowest compute capability of a GPU with flash attention (A100)."""


class AttentionKernel(enum.StrEnum):
    """GRIDS: torch's scaled_dot_product_attention over right-padded grids. VARLEN: torch's flash attention over the
    packed tokens, without padding.
    """

    GRIDS = "grids"
    VARLEN = "varlen"


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """The properties on which the choice of a kernel depends."""

    capability: Annotated[tuple[int, int] | None, doc("Compute capability of the query's GPU; None on a CPU.")]
    dtype: torch.dtype
    head_size: int
    sequences: Annotated[int, doc("Number of packed sequences.")]
    shares: Annotated[bool, doc("Some sequences share a prefix, or ranks share a sequence.")]
    has_varlen: Annotated[bool, doc("This torch has `Varlen`.")]


def kernel_for(call: AttentionCall) -> AttentionKernel:
    """Return `VARLEN` for several sequences on a GPU in half precision, else `GRIDS`.

    A single sequence has no padding, and for it torch uses cuDNN's kernel in a grid, which is faster (docs/gpu.md).
    Lengths cannot describe a shared prefix or a part of a sequence. Flash attention does not support float32.
    """
    can = (
        call.has_varlen
        and call.capability is not None
        and call.capability >= CAPABILITY
        and call.dtype in (torch.bfloat16, torch.float16)
        and call.head_size <= LARGEST_HEAD
        and call.head_size % 8 == 0
    )
    return AttentionKernel.VARLEN if can and call.sequences > 1 and not call.shares else AttentionKernel.GRIDS


@functools.cache
def varlen_attention() -> Varlen | None:
    """Return torch's function; None if this torch has none with all `KEYWORDS`."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    parameters = inspect.signature(varlen_attn).parameters
    has_keywords = all(name in parameters for name in KEYWORDS)
    return cast("Varlen", varlen_attn) if has_keywords else None  # returns only a tensor unless more is requested


@functools.cache
def capability_of(device: torch.device) -> tuple[int, int] | None:
    """Return the compute capability of a GPU; None for another device."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None
