"""Matrix products whose rows do not depend on how many rows there are.

BLAS takes other kernels, with another order of summation, for products of a few rows. Measured with MKL 2024 on
AVX-512 over the shapes of the demo and of SmolLM2-135M: from 16 rows on every row has the same bits. So fewer rows
are padded to `ROWS`; that costs nothing at the batch sizes of a rollout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

ROWS = 16


def padded_rows(x: torch.Tensor) -> torch.Tensor:
    """x [rows, features] with zero rows added up to `ROWS`."""
    return torch.nn.functional.pad(x, (0, 0, 0, ROWS - x.shape[0]))


def apply(
    original: Callable[..., torch.Tensor], method: Any, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Around hook of `UnquantizedLinearMethod.apply`."""
    if x.dim() != 2 or x.shape[0] >= ROWS:
        return original(method, layer, x, bias)
    return original(method, layer, padded_rows(x), bias)[: x.shape[0]]


def lm_head(
    original: Callable[..., torch.Tensor], processor: Any, hidden: torch.Tensor, *rest: Any, **options: Any
) -> torch.Tensor:
    """Around hook of `LogitsProcessor._compute_lm_head`. hidden [rows, features] -> logits [rows, vocabulary]."""
    if hidden.shape[0] >= ROWS:
        return original(processor, hidden, *rest, **options)
    options.pop("out", None)  # its shape is that of the rows before padding
    return original(processor, padded_rows(hidden), *rest, **options)[: hidden.shape[0]]
