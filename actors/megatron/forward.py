"""One packed micro batch through a model: log-probs (and entropy) of the response tokens of each sample.

Logits may be cut along the vocabulary over tensor parallel ranks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from actors.megatron.attention import Layer, PackedSequences
from actors.megatron.heartbeat import beat
from slime_events.core.train_batch import TrainSample

ByRows = Callable[[Layer, Tensor], tuple[Tensor, Tensor]]
NEVER = -1e9
"""A logit of probability 0, of which every product is finite."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Samples end to end in one sequence without padding.

    token_ids, position_ids: int64 [1, tokens]. targets: int64 [response tokens], and packed.rows the positions that
    predict them. responses: response tokens of each sample. kept: int64 [2, any], places among the targets with ids
    that their tokens were drawn from; a place without any was drawn from all. None where all places were. targets_of:
    int64 [sum of responses], the target of each response token, where samples share some; None: each has its own.
    """

    token_ids: Tensor
    position_ids: Tensor
    packed: PackedSequences
    targets: Tensor
    responses: list[int]
    kept: Tensor | None = None
    targets_of: Tensor | None = None

    def by_sample(self, values: Tensor) -> list[Tensor]:
        """[targets] -> of each sample [response]."""
        every = values if self.targets_of is None else values.index_select(0, self.targets_of)
        return list(torch.split(every, self.responses))


@dataclass(frozen=True, slots=True)
class LogitMemory:
    """What is saved on rows of logits. chunk: rows that have logits at once, -1 for all; where there are more, they are
    made again in the backward pass. recompute: of all rows at once, keep the logits for the backward pass, as they are,
    and not their float32 softmax (and, with an entropy gradient, more).
    """

    chunk: int = -1
    recompute: bool = False


def pack(samples: Sequence[TrainSample], device: torch.device, *, multiple_of: int = 1) -> MicroBatch:
    """Pack samples, each with a prompt and a response of at least 1 token.

    multiple_of: fill up with a sequence of zeros that nothing looks at, for sequence parallelism.
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
    """Pack (tokens, targets), int32 [n] each with n at least 1, where token i is to predict target i. multiple_of: as
    of `pack`.
    """
    lengths = [len(tokens) for tokens, _ in sequences]
    count = sum(lengths)
    tokens, targets = (np.concatenate(parts).astype(np.int64) for parts in zip(*sequences, strict=True))
    if fill := -count % multiple_of:
        tokens, sizes = np.concatenate([tokens, np.zeros(fill, np.int64)]), [*lengths, fill]
    else:
        sizes = lengths
    positions = np.concatenate([np.arange(size) for size in sizes])
    token_ids, position_ids, rows, wanted = (
        torch.from_numpy(array).to(device) for array in (tokens, positions, np.arange(count), targets)
    )
    packed = PackedSequences.of(sizes, rows, device)
    return MicroBatch(token_ids[None], position_ids[None], packed, wanted, lengths)


def kept_of_all(samples: Sequence[TrainSample], device: torch.device) -> Tensor | None:
    """`MicroBatch.kept` of samples whose response tokens are targets, one behind the other."""
    parts, begin = [], 0
    for sample in samples:
        for part in sample.kept:
            places, ids = part.unpack()
            parts.append(np.stack([places + begin, ids]))
        begin += sample.response_length
    return torch.from_numpy(np.concatenate(parts, axis=1)).to(device) if parts else None


def _kept_of(kept: Tensor | None, begin: int, count: int) -> Tensor | None:
    """Those of `count` places from one on, counted from there; None where these places kept all."""
    if kept is None:
        return None
    there = kept[:, (kept[0] >= begin) & (kept[0] < begin + count)]
    return torch.stack([there[0] - begin, there[1]]) if there.numel() else None


def only_kept(logits: Tensor, targets: Tensor, kept: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Logits [rows, vocabulary / ranks of the group] of which only the kept ids of a row have probability, and its
    target. targets: int64 [rows]; kept: see `MicroBatch`.
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
    """What the model says at the positions that predict a response token, [response tokens, outputs of this rank]; or,
    of a model of ours, what `by_rows` makes of these positions.
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
    """(log-probs, entropy) of each sample's response, float32 [response] each, of logits / temperature, in nats."""
    rows = len(batch.targets)
    size = memory.chunk if 0 < memory.chunk < rows else rows

    def by_rows(layer: Layer, hidden: Tensor) -> tuple[Tensor, Tensor]:
        parts, begin = [], 0
        for some, targets in zip(torch.split(hidden, size), torch.split(batch.targets, size), strict=True):
            kept = _kept_of(batch.kept, begin, len(targets))
            given = (layer, some, targets, group, temperature, entropy_gradient, kept)
            begin += len(targets)
            if torch.is_grad_enabled() and (size < rows or memory.recompute):
                parts.append(checkpoint(_tempered, *given, use_reentrant=False, preserve_rng_state=False))
            else:
                parts.append(_tempered(*given))
        log_probs, entropy = parts[0] if len(parts) == 1 else map(torch.cat, zip(*parts, strict=True))
        return log_probs, entropy

    outputs = response_outputs(model, batch, by_rows if size < rows else None)
    log_probs, entropy = by_rows(_as_they_are, outputs) if isinstance(outputs, Tensor) else outputs
    return batch.by_sample(log_probs), batch.by_sample(entropy)


def _as_they_are(logits: Tensor) -> Tensor:
    """In place of an output layer, where the model has given its logits."""
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
