"""One packed micro batch through a model: log-probs (and entropy) of the response tokens of each sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from actors.megatron.attention import PackedSequences
from actors.megatron.vocab_parallel import log_probs_and_entropy
from slime_events.core.train_batch import TrainSample


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Samples end to end in one sequence without padding.

    token_ids, position_ids: int64 [1, tokens]. targets: int64 [response tokens], and packed.rows the positions that
    predict them. responses: response tokens of each sample.
    """

    token_ids: Tensor
    position_ids: Tensor
    packed: PackedSequences
    targets: Tensor
    responses: list[int]


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
    return MicroBatch(token_ids[None], position_ids[None], packed, targets, responses)


def response_log_probs(
    model: torch.nn.Module,
    batch: MicroBatch,
    temperature: float,
    group: dist.ProcessGroup,
    *,
    entropy_gradient: bool = False,
) -> tuple[list[Tensor], list[Tensor]]:
    """(log-probs, entropy) of each sample's response, float32 [response] each, of logits / temperature, in nats."""
    logits = model(batch.token_ids, batch.position_ids, None, packed_seq_params=batch.packed).squeeze(0)
    if len(logits) != len(batch.targets):
        logits = logits.index_select(0, batch.packed.rows)
    if temperature != 1.0:
        logits = logits / temperature
    log_probs, entropy = log_probs_and_entropy(logits, batch.targets, group, entropy_gradient=entropy_gradient)
    return list(torch.split(log_probs, batch.responses)), list(torch.split(entropy, batch.responses))
