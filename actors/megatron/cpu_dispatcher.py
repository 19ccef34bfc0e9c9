"""Replacements that let Megatron's all-to-all dispatcher of tokens run on a CPU (gloo). With CUDA they are not used."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import mappings
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher
from torch import Tensor

from actors.megatron.cpu import on_cpu

SPLITS = ("input_splits", "output_splits", "output_splits_tp")
"""The dispatcher's numbers of tokens by rank, which collectives take as numbers and not as a tensor."""


@functools.cache
def install_dispatcher() -> None:
    """Replace the dispatcher's CUDA stream, and the collectives that gloo does not have. Repeated calls have no effect.

    gloo gathers and scatters only parts of one size.
    """
    if not on_cpu():
        return
    MoEAlltoAllTokenDispatcher.cuda_dtoh_stream = object()  # without one, the dispatcher makes a CUDA stream
    MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize = _at_point
    mappings._gather_along_first_dim = _Uneven(mappings._gather_along_first_dim).gather
    mappings._reduce_scatter_along_first_dim = _Uneven(mappings._reduce_scatter_along_first_dim).scatter


def _at_point(
    dispatcher: MoEAlltoAllTokenDispatcher, point: str, tokens_per_expert: Tensor | None = None
) -> Tensor | None:
    """Convert the numbers of tokens at the point at which Megatron copies them to the host."""
    if point == dispatcher.cuda_dtoh_point and not dispatcher.drop_and_pad:
        for name in SPLITS:
            if torch.is_tensor(splits := getattr(dispatcher, name)):
                setattr(dispatcher, name, splits.numpy())
    return tokens_per_expert


class _Uneven:
    """A collective of Megatron's; parts of several sizes are a sum of tensors that are 0 outside of a rank's part."""

    def __init__(self, even: Any) -> None:
        self._even = even

    def gather(
        self, part: Tensor, group: dist.ProcessGroup, sizes: Sequence[int] | None = None, *args: object, **more: object
    ) -> Tensor:
        """Return the parts of all ranks along the first dimension."""
        sizes = more.pop("output_split_sizes", sizes)  # type: ignore[assignment]  # the type is Megatron's
        if group.size() == 1 or sizes is None:
            return self._even(part, group, sizes, *args, **more)  # type: ignore[no-any-return]  # Megatron has no types
        whole = part.new_zeros((sum(sizes), *part.shape[1:]))
        torch.split(whole, list(sizes))[group.rank()].copy_(part)
        dist.all_reduce(whole, group=group)
        return whole

    def scatter(
        self, whole: Tensor, group: dist.ProcessGroup, sizes: Sequence[int] | None = None, *args: object, **more: object
    ) -> Tensor:
        """Return this rank's part of the sum over all ranks."""
        sizes = more.pop("input_split_sizes", sizes)  # type: ignore[assignment]  # the type is Megatron's
        if group.size() == 1 or sizes is None:
            return self._even(whole, group, sizes, *args, **more)  # type: ignore[no-any-return]  # Megatron has no types
        total = whole.contiguous().clone()
        dist.all_reduce(total, group=group)
        return torch.split(total, list(sizes))[group.rank()].clone()
