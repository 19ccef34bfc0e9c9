"""`pack` samples to a micro batch, and run a model's forward pass over it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from actors.megatron.attention import PackedSequences
from actors.megatron.pipeline import has_output
from actors.step.heartbeat import beat
from actors.step.log_probs import ByRows, LogitMemory, TargetTokens
from actors.step.micro_batch import MicroBatch
from actors.step.policy import Outputs
from slime_events.core.training.train_batch import TrainSample

Packed = MicroBatch[PackedSequences]
"""A micro batch in Megatron's layout."""
ALL_AT_ONCE = LogitMemory()


def pack(samples: Sequence[TrainSample], device: torch.device, *, multiple_of: int = 1) -> Packed:
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
) -> Packed:
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


def response_outputs(model: torch.nn.Module, batch: Packed, by_rows: ByRows | None = None) -> Any:
    """Return the model's outputs at the positions that predict targets, [targets, outputs of this rank].

    If the model is a `PolicyModel`, `by_rows` replaces the outputs. A stage before the last one has no outputs, only
    hidden states.
    """
    packed = batch.packed if by_rows is None else replace(batch.packed, by_rows=by_rows)
    outputs = model(batch.token_ids, batch.position_ids, None, packed_seq_params=packed)
    beat()
    if not isinstance(outputs, Tensor) or not has_output(model):
        return outputs
    outputs, rows = outputs.squeeze(0), batch.packed.rows
    return outputs if rows is None or len(outputs) == len(batch.targets) else outputs.index_select(0, rows)


def response_log_probs(
    model: torch.nn.Module,
    batch: Packed,
    temperature: float,
    group: dist.ProcessGroup,
    *,
    entropy_gradient: bool = False,
    memory: LogitMemory = ALL_AT_ONCE,
) -> Outputs:
    """Return log-probs and entropy of logits / temperature, per sample; nothing on a stage before the last one."""
    targets = TargetTokens(batch.targets, batch.kept, temperature, group, entropy_gradient, memory)
    outputs = response_outputs(model, batch, targets.by_rows if targets.in_chunks else None)
    if not has_output(model):
        return Outputs([], [])
    log_probs, entropy = targets.of_logits(outputs) if isinstance(outputs, Tensor) else outputs
    return Outputs(batch.by_sample(log_probs), batch.by_sample(entropy))
