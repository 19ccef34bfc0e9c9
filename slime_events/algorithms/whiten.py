"""Whitening of advantages over all trained tokens of a step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

AllReduce = Callable[[Tensor], Tensor]
"""Sums a small float64 tensor over the data parallel ranks (context parallel ranks among them)."""

EPS = 1e-8


def masked_whiten(values: Tensor, mask: Tensor, all_reduce: AllReduce | None = None) -> Tensor:
    """(values - mean) * rsqrt(var + 1e-8) with mean and unbiased variance over the masked elements of all ranks.

    `values` and `mask` are [tokens]; elements outside the mask are transformed as well. With fewer than two trained
    tokens there is no variance: the values are centred only.
    """
    trained = values.double() * mask
    moments = torch.stack([mask.double().sum(), trained.sum(), trained.square().sum()])
    if all_reduce is not None:
        moments = all_reduce(moments)
    count, total, squares = moments
    mean = total / count.clamp_min(1)
    variance = ((squares - count * mean.square()) / (count - 1).clamp_min(1)).clamp_min(0)
    scale = torch.where(count < 2, 1.0, torch.rsqrt(variance + EPS))
    whitened: Tensor = (values - mean) * scale
    return whitened.to(values.dtype)
