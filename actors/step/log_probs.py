"""Log-probs and entropy of target tokens.

Logits may be cut along the vocabulary over tensor parallel ranks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from schemas.doc import doc

Layer = Callable[[Tensor], Tensor]
"""[rows, hidden] -> [rows, outputs]."""
ByRows = Callable[[Layer, Tensor], tuple[Tensor, Tensor]]
"""(output layer, hidden states of the rows) -> (log-probs, entropy), [rows] each."""
NEVER = -1e9
"""A logit of probability 0 whose products are all finite."""


@dataclass(frozen=True, slots=True)
class LogitMemory:
    """Limits on the memory for logits."""

    chunk: Annotated[
        int, doc("Rows that have logits at a time; with more rows, backward recomputes them. -1: all rows.")
    ] = -1
    recompute: Annotated[bool, doc("Keep only the logits for backward, and recompute their float32 softmax.")] = False


@dataclass(frozen=True, slots=True)
class TargetTokens:
    """The tokens to predict in a micro batch, and how their log-probs are computed."""

    ids: Annotated[Tensor, doc("int64 [rows]: ids in the whole vocabulary")]
    kept: Annotated[Tensor | None, doc("see `MicroBatch.kept`")]
    temperature: Annotated[float, doc("divisor of the logits")]
    group: Annotated[dist.ProcessGroup, doc("ranks over which the vocabulary is cut")]
    entropy_gradient: Annotated[bool, doc("the entropy carries a gradient")]
    memory: Annotated[LogitMemory, doc("limits on the memory for logits")]

    @property
    def in_chunks(self) -> bool:
        """Whether only a part of the rows may have logits at a time: then a model must call `by_rows`."""
        return 0 < self.memory.chunk < len(self.ids)

    def by_rows(self, layer: Layer, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return (log-probs, entropy), float32 [rows] each, in nats.

        layer: the output layer. hidden: hidden states of the rows [rows, hidden].
        """
        size = self.memory.chunk if self.in_chunks else len(self.ids)
        parts, begin = [], 0
        for some, targets in zip(torch.split(hidden, size), torch.split(self.ids, size), strict=True):
            kept = _kept_of(self.kept, begin, len(targets))
            arguments = (layer, some, targets, self.group, self.temperature, self.entropy_gradient, kept)
            begin += len(targets)
            if torch.is_grad_enabled() and (self.in_chunks or self.memory.recompute):
                parts.append(checkpoint(_tempered, *arguments, use_reentrant=False, preserve_rng_state=False))
            else:
                parts.append(_tempered(*arguments))
        log_probs, entropy = parts[0] if len(parts) == 1 else map(torch.cat, zip(*parts, strict=True))
        return log_probs, entropy

    def of_logits(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return (log-probs, entropy) as `by_rows`, of logits [rows, vocabulary / ranks of the group]."""
        return self.by_rows(lambda rows: rows, logits)


def _kept_of(kept: Tensor | None, begin: int, count: int) -> Tensor | None:
    """Return the pairs of `count` targets from `begin` on, with indices relative to `begin`; None without pairs."""
    if kept is None:
        return None
    there = kept[:, (kept[0] >= begin) & (kept[0] < begin + count)]
    return torch.stack([there[0] - begin, there[1]]) if there.numel() else None


def only_kept(logits: Tensor, targets: Tensor, kept: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Mask logits, so that only a row's kept ids and its target have probability.

    logits: [rows, vocabulary / ranks of the group]. targets: int64 [rows]. kept: see `MicroBatch`.
    """
    width, rows = logits.size(-1), torch.arange(len(targets), device=logits.device)
    chosen = torch.ones(len(targets), dtype=torch.bool, device=logits.device)
    chosen[kept[0]] = False
    stays = chosen.unsqueeze(1).repeat(1, width)
    for places, ids in ((kept[0], kept[1]), (rows, targets)):
        local = ids - group.rank() * width
        mine = (local >= 0) & (local < width)
        stays[places[mine], local[mine]] = True
    return logits.masked_fill(~stays, NEVER)


def _tempered(
    layer: Layer,
    hidden: Tensor,
    targets: Tensor,
    group: dist.ProcessGroup,
    temperature: float,
    entropy_gradient: bool,
    kept: Tensor | None,
) -> tuple[Tensor, Tensor]:
    logits = layer(hidden)
    if temperature != 1.0:
        logits = logits.float() / temperature
    if kept is not None:
        logits = only_kept(logits, targets, kept, group)
    return log_probs_and_entropy(logits, targets, group, entropy_gradient=entropy_gradient)


def log_probs_and_entropy(
    logits: Tensor, targets: Tensor, group: dist.ProcessGroup, *, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """Return (log p(target), entropy) per row, float32 [rows] each, in nats.

    logits: [rows, vocabulary / ranks of the group], this rank's columns, of any float dtype. targets: int64 [rows], ids
    in the whole vocabulary. Every rank of the group gets the same result, and the gradient of its own columns. The
    entropy carries a gradient only with `entropy_gradient`.
    """
    both: tuple[Tensor, Tensor] = _LogProbsAndEntropy.apply(  # type: ignore[no-untyped-call]
        logits, targets, group, entropy_gradient
    )
    return both


class _LogProbsAndEntropy(torch.autograd.Function):
    """Log-probs and entropy from one softmax, which is kept for the backward pass.

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
