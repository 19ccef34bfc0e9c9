"""`WithLoss`: lets the backward pass of some values begin that of a loss that was computed beside them."""

from typing import Any

import torch
from torch import Tensor


class WithLoss(torch.autograd.Function):
    """Return values unchanged. Their backward pass is that of a further loss [] too, with gradient 1."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, loss: Tensor) -> Tensor:
        ctx.save_for_backward(loss)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, torch.ones_like(ctx.saved_tensors[0])
