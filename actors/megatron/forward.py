"""Forward pass of a packed micro batch: log-probs and entropy of the response tokens of each sample.

Logits may be cut along the vocabulary over tensor parallel ranks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from actors.megatron.attention import Layer, PackedSequences
from actors.megatron.heartbeat import beat
from schemas.doc import doc
from slime_events.core.train_batch import TrainSample

ByRows = Callable[[Layer, Tensor], tuple[Tensor, Tensor]]
NEVER = -1e9
"""A logit of probability 0 whose products are all finite."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Samples concatenated to one sequence without padding."""

    token_ids: Annotated[Tensor, doc("int64 [1, tokens]")]
    position_ids: Annotated[Tensor, doc("int64 [1, tokens]")]
    packed: Annotated[PackedSequences, doc("`packed.rows` are the positions that predict the targets.")]
    targets: Annotated[Tensor, doc("int64 [targets]: response tokens to predict")]
    responses: Annotated[list[int], doc("response tokens of each sample")]
    kept: Annotated[
        Tensor | None,
        doc(
            "int64 [2, pairs]: (target index, id) pairs of the ids from which a target was sampled; a target without "
            "pairs was sampled from all ids; None if all targets were"
        ),
    ] = None
    targets_of: Annotated[
        Tensor | None, doc("int64 [response tokens]: target of each response token, if samples share targets")
    ] = None

    def by_sample(self, values: Tensor) -> list[Tensor]:
        """Divide [targets] into [response] per sample."""
        every = values if self.targets_of is None else values.index_select(0, self.targets_of)
        return list(torch.split(every, self.responses))


@dataclass(frozen=True, slots=True)
class LogitMemory:
    """Limits on the memory for logits."""

    chunk: Annotated[
        int, doc("Rows that have logits at a time; with more rows, backward recomputes them. -1: all rows.")
    ] = -1
    recompute: Annotated[bool, doc("Keep only the logits for backward, and recompute their float32 softmax.")] = False


def pack(samples: Sequence[TrainSample], device: torch.device, *, multiple_of: int = 1) -> MicroBatch:
    """Pack samples whose prompt and response have at least 1 token each.

    multiple_of: pad the number of tokens to a multiple, for sequence parallelism, with a sequence of zeros that no
    token sees.
    """
    lengths = [sample.total_length for sample in samples]
    responses = [sample.response_length for sample in samples]
    ends = np.cumsum(lengths)
    # The token at position i is predicted by the logits at i - 1.
    rows = np.concatenate([np.arange(end - size - 1, end - 1) for end, size in zip(ends, responses, strict=True)])
    fill = -int(ends[-1]) % multiple_of
    if fill:
        lengths.append(fill)
    tokens = np.concatenate([*(sample.tokens for sample in samples), np.zeros(fill, np.int32)]).astype(np.int64)
    positions = np.concatenate([np.arange(length) for length in lengths])
    on_device = [torch.from_numpy(array).to(device) for array in (tokens, positions, rows, tokens[rows + 1])]
    token_ids, position_ids, packed_rows, targets = on_device
    packed = PackedSequences.of(lengths, packed_rows, device)
    return MicroBatch(token_ids[None], position_ids[None], packed, targets, responses, kept_of_all(samples, device))


def pack_sequences(
    sequences: Sequence[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]],
    device: torch.device,
    *,
    multiple_of: int = 1,
) -> MicroBatch:
    """Pack pairs (tokens, targets), int32 [n] each with n at least 1. Token i predicts target i.

    multiple_of: as in `pack`.
    """
    lengths = [len(tokens) for tokens, _ in sequences]
    count = sum(lengths)
    tokens, targets = (np.concatenate(parts).astype(np.int64) for parts in zip(*sequences, strict=True))
    if fill := -count % multiple_of:
        tokens, sizes = np.concatenate([tokens, np.zeros(fill, np.int64)]), [*lengths, fill]
    else:
        sizes = lengths
    positions = np.concatenate([np.arange(size) for size in sizes])
    token_ids, position_ids, rows, target_ids = (
        torch.from_numpy(array).to(device) for array in (tokens, positions, np.arange(count), targets)
    )
    packed = PackedSequences.of(sizes, rows, device)
    return MicroBatch(token_ids[None], position_ids[None], packed, target_ids, lengths)


def kept_of_all(samples: Sequence[TrainSample], device: torch.device) -> Tensor | None:
    """Return `MicroBatch.kept` of samples whose concatenated response tokens are the targets."""
    parts, begin = [], 0
    for sample in samples:
        for part in sample.kept:
            places, ids = part.unpack()
            parts.append(np.stack([places + begin, ids]))
        begin += sample.response_length
    return torch.from_numpy(np.concatenate(parts, axis=1)).to(device) if parts else None


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


def response_outputs(model: torch.nn.Module, batch: MicroBatch, by_rows: ByRows | None = None) -> Any:
    """Return the model's outputs at the positions that predict targets, [targets, outputs of this rank].

    If the model is a `PolicyModel`, `by_rows` replaces the outputs.
    """
    packed = batch.packed if by_rows is None else replace(batch.packed, by_rows=by_rows)
    outputs = model(batch.token_ids, batch.position_ids, None, packed_seq_params=packed)
    beat()
    if not isinstance(outputs, Tensor):
        return outputs
    outputs, rows = outputs.squeeze(0), batch.packed.rows
    return outputs if rows is None or len(outputs) == len(batch.targets) else outputs.index_select(0, rows)


def response_log_probs(
    model: torch.nn.Module,
    batch: MicroBatch,
    temperature: float,
    group: dist.ProcessGroup,
    *,
    entropy_gradient: bool = False,
    memory: LogitMemory = LogitMemory(),
) -> tuple[list[Tensor], list[Tensor]]:
    """Return (log-probs, entropy) per sample, float32 [response] each, of logits / temperature, in nats."""
    rows = len(batch.targets)
    size = memory.chunk if 0 < memory.chunk < rows else rows

    def by_rows(layer: Layer, hidden: Tensor) -> tuple[Tensor, Tensor]:
        parts, begin = [], 0
        for some, targets in zip(torch.split(hidden, size), torch.split(batch.targets, size), strict=True):
            kept = _kept_of(batch.kept, begin, len(targets))
            arguments = (layer, some, targets, group, temperature, entropy_gradient, kept)
            begin += len(targets)
            if torch.is_grad_enabled() and (size < rows or memory.recompute):
                parts.append(checkpoint(_tempered, *arguments, use_reentrant=False, preserve_rng_state=False))
            else:
                parts.append(_tempered(*arguments))
        log_probs, entropy = parts[0] if len(parts) == 1 else map(torch.cat, zip(*parts, strict=True))
        return log_probs, entropy

    outputs = response_outputs(model, batch, by_rows if size < rows else None)
    log_probs, entropy = by_rows(_identity, outputs) if isinstance(outputs, Tensor) else outputs
    return batch.by_sample(log_probs), batch.by_sample(entropy)


def _identity(logits: Tensor) -> Tensor:
    """Replace the output layer if the model has already computed its logits."""
    return logits


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
