"""`kernel_for`: which kernel computes our attention over packed sequences, the one place where that is decided."""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Varlen = Callable[..., Tensor]
"""`torch.nn.attention.varlen.varlen_attn`."""
ASKED = ("window_size", "enable_gqa")
"""Keywords of it that an older torch does not have."""
LARGEST_HEAD = 192
"""Flash attention goes to 256, but on some GPUs not with a gradient."""
CAPABILITY = (8, 0)
"""Of a GPU with flash attention (A100)."""


class AttentionKernel(enum.StrEnum):
    """grids: torch's scaled_dot_product_attention over right-padded grids. varlen: torch's flash attention over the
    packed tokens, without padding.
    """

    GRIDS = "grids"
    VARLEN = "varlen"


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What the choice depends on. capability: compute capability of the query's GPU, None for another device.
    sequences: how many are packed. shares: some of them share a prefix. has_varlen: this torch has `Varlen`.
    """

    capability: tuple[int, int] | None
    dtype: torch.dtype
    head_size: int
    sequences: int
    shares: bool
    has_varlen: bool


def kernel_for(call: AttentionCall) -> AttentionKernel:
    """`VARLEN` on a GPU in half precision, for several sequences.

    A single sequence has no padding, and cuDNN's kernel, which torch takes for it in a grid, was the faster one
    (docs/gpu.md). A shared prefix cannot be said by lengths. In float32 flash attention does not exist.
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
    """torch's function; None where this torch has none with the keywords of `ASKED`."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    known = inspect.signature(varlen_attn).parameters
    found: Any = varlen_attn  # it returns a tensor alone where nothing beside it is asked for
    chosen: Varlen | None = found if all(name in known for name in ASKED) else None
    return chosen


@functools.cache
def capability_of(device: torch.device) -> tuple[int, int] | None:
    """See `AttentionCall`."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None
