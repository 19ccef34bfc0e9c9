"""`pack` samples to a micro batch, and run a model's forward pass over it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from actors.megatron.attention import Ints, PackedSequences
from actors.megatron.context_sequences import ContextSequences
from actors.megatron.pipeline import has_output
from actors.megatron.voters import Voters
from actors.step.heartbeat import beat
from actors.step.log_probs import ByRows, LogitMemory, TargetTokens
from actors.step.micro_batch import MicroBatch
from actors.step.policy import Outputs
from slime_events.core.training.train_batch import TrainSample

Packed = MicroBatch[PackedSequences]
"""A micro batch in Megatron's layout."""
ALL_AT_ONCE = LogitMemory()


def pack(
    samples: Sequence[TrainSample],
    device: torch.device,
    *,
    multiple_of: int = 1,
    context: dist.ProcessGroup | None = None,
) -> Packed:
    """Pack samples whose prompt and response have at least 1 token each.

    multiple_of: pad the number of tokens on a rank to a multiple, for sequence parallelism, with a sequence of zeros
    that no token sees. context: context parallel ranks, over which each sequence is cut.
    """
    lengths = [sample.total_length for sample in samples]
    responses = [sample.response_length for sample in samples]
    ends = np.cumsum(lengths)
    # The token at position i is predicted by the logits at i - 1.
    rows = np.concatenate([np.arange(end - size - 1, end - 1) for end, size in zip(ends, responses, strict=True)])
    tokens = np.concatenate([sample.tokens for sample in samples]).astype(np.int64)
    return _packed(
        lengths, tokens, rows, tokens[rows + 1], responses, device,
        multiple_of=multiple_of, context=context, kept=kept_of_all(samples, device),
    )  # fmt: skip


def pack_sequences(
    sequences: Sequence[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]],
    device: torch.device,
    *,
    multiple_of: int = 1,
    context: dist.ProcessGroup | None = None,
) -> Packed:
    """Pack pairs (tokens, targets), int32 [n] each with n at least 1. Token i predicts target i.

    multiple_of, context: as in `pack`.
    """
    lengths = [len(tokens) for tokens, _ in sequences]
    tokens, targets = (np.concatenate(parts).astype(np.int64) for parts in zip(*sequences, strict=True))
    rows = np.arange(len(tokens))
    return _packed(
        lengths, tokens, rows, targets, lengths, device, multiple_of=multiple_of, context=context
    )  # fmt: skip


def _packed(
    lengths: list[int],
    tokens: Ints,
    rows: Ints,
    targets: Ints,
    responses: list[int],
    device: torch.device,
    *,
    multiple_of: int,
    context: dist.ProcessGroup | None,
    kept: Tensor | None = None,
) -> Packed:
    """Return the micro batch of packed tokens, of which `rows` predict `targets`."""
    packed: PackedSequences
    if context is not None and context.size() > 1:
        packed = ContextSequences.of_cut(lengths, rows, device, context, multiple_of)
    else:
        fill = -len(tokens) % multiple_of
        voters = Voters.of(lengths, fill, device)
        if fill:
            tokens, lengths = np.concatenate([tokens, np.zeros(fill, np.int64)]), [*lengths, fill]
        packed = PackedSequences.of(lengths, torch.from_numpy(rows).to(device), device)
        packed.voters = voters
    positions = np.concatenate([np.arange(length) for length in lengths])
    on_device = [torch.from_numpy(array).to(device) for array in (tokens, positions, targets)]
    token_ids, position_ids, target_ids = on_device
    return MicroBatch(token_ids[None], position_ids[None], packed, target_ids, responses, kept)


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
    """Return the model's outputs at this rank's positions that predict targets, [rows, outputs of this rank].

    If the model is a `PolicyModel`, `by_rows` replaces the outputs. A stage before the last one has no outputs, only
    hidden states.
    """
    packed = batch.packed if by_rows is None else replace(batch.packed, by_rows=by_rows)
    outputs = model(*packed.inputs(batch.token_ids, batch.position_ids), None, packed_seq_params=packed)
    beat()
    if not isinstance(outputs, Tensor) or not has_output(model):
        return outputs
    outputs, rows = outputs.squeeze(0), batch.packed.rows
    return outputs if rows is None or len(outputs) == len(rows) else outputs.index_select(0, rows)


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
    own, kept = batch.packed.own_targets(batch.targets, batch.kept)
    targets = TargetTokens(own, kept, temperature, group, entropy_gradient, memory)
    outputs = response_outputs(model, batch, targets.by_rows if targets.in_chunks else None)
    if not has_output(model):
        return Outputs([], [])
    both = targets.of_logits(outputs) if isinstance(outputs, Tensor) else outputs
    log_probs, entropy = map(batch.packed.of_all_targets, both)
    return Outputs(batch.by_sample(log_probs), batch.by_sample(entropy))
