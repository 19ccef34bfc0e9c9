"""Log-probs and entropy from logits that may be cut along the vocabulary over tensor parallel ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable


def log_probs_and_entropy(
    logits: Tensor, targets: Tensor, group: dist.ProcessGroup, *, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """(log p(target), entropy) of each row, float32 [rows] each, in nats.

    logits: [rows, vocabulary / ranks of the group], this rank's columns, any float dtype. targets: int64 [rows], ids
    in the whole vocabulary. Every rank of the group gets the same result and the gradient of its own columns. The
    entropy carries a gradient only with `entropy_gradient`.
    """
    both: tuple[Tensor, Tensor] = _LogProbsAndEntropy.apply(  # type: ignore[no-untyped-call]
        logits, targets, group, entropy_gradient
    )
    return both


class _LogProbsAndEntropy(torch.autograd.Function):
    """One softmax for both, kept for the backward pass.

    With p the softmax of the logits z, H the entropy and E = sum p z:
    d log p(target) / dz = onehot(target) - p, and dH / dz = -p (z - E).
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, group: dist.ProcessGroup, entropy_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        parallel = group.size() > 1
        z = logits.float()
        top = z.amax(-1, keepdim=True)
        if parallel:
            dist.all_reduce(top, dist.ReduceOp.MAX, group)
        z = z - top
        p = z.exp()
        first = group.rank() * z.size(-1)
        local = targets - first
        mine = (local >= 0) & (local < z.size(-1))
        local = local.clamp(0, z.size(-1) - 1)
        total = p.sum(-1)
        chosen = z.gather(-1, local.unsqueeze(-1)).squeeze(-1) * mine
        mean = torch.linalg.vecdot(p, z)
        if parallel:
            sums = torch.stack([total, chosen, mean])
            dist.all_reduce(sums, dist.ReduceOp.SUM, group)
            total, chosen, mean = sums
        p /= total.unsqueeze(-1)
        mean = mean / total
        log_total = total.log()
        entropy = log_total - mean
        ctx.save_for_backward(p, local, mine, *((z, mean) if entropy_gradient else ()))
        ctx.dtype = logits.dtype
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return chosen - log_total, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_log_probs: Tensor, grad_entropy: Tensor) -> tuple[Tensor | None, ...]:
        p, local, mine, *with_entropy = ctx.saved_tensors
        factor = -grad_log_probs.unsqueeze(-1)
        if with_entropy:
            z, mean = with_entropy
            factor = factor - grad_entropy.unsqueeze(-1) * (z - mean.unsqueeze(-1))
        grad = p * factor
        rows = torch.arange(len(local), device=local.device)
        grad[rows, local] += grad_log_probs * mine
        return grad.to(ctx.dtype), None, None, None
