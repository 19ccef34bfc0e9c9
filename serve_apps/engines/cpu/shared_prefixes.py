"""Compute the common prefixes of the sequences in a forward pass once.

The samples of a group have one prompt, and samples that SGLang retracted for new weights also share response tokens.
SGLang's prefix cache serves samples that arrive after a prompt was prefilled, but on a CPU they arrive together. So
every forward pass computes each distinct prefix once and copies its rows: keys and values into the cache slots of each
sequence, the last hidden states to the logits of each. A row depends only on the tokens up to its own (`layers`,
`attention`), so it has the bits that every sequence would have computed for itself.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

import numpy as np
import numpy.typing as npt
import torch

from schemas.doc import doc

if TYPE_CHECKING:
    from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
    from sglang.srt.layers.logits_processor import LogitsProcessor, LogitsProcessorOutput
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """Which rows of a pass to compute, and where to copy them."""

    own: Annotated[torch.Tensor, doc("Indices of the computed tokens, [rows].")]
    row: Annotated[torch.Tensor, doc("Each token's index among the computed rows, [tokens].")]
    new: Annotated[torch.Tensor, doc("Computed tokens of each sequence: its last ones, not shared. [sequences]")]


def shared_prefixes(tokens: Numbers, lengths: Sequence[int], whole: Sequence[bool]) -> SharedPrefixes | None:
    """Return the shared prefixes; None if no token is shared.

    `tokens` are those of all sequences, one after another. `whole` says whether a sequence had nothing cached before;
    other sequences share nothing.
    """
    starts = np.cumsum([0, *lengths])
    sequences = [tokens[start : start + length] for start, length in zip(starts, lengths, strict=False)]
    alike = sorted((i for i, it in enumerate(whole) if it), key=lambda i: sequences[i].tolist())
    shared = np.zeros(len(sequences), np.int64)
    for before, after in pairwise(alike):  # in sorted order the previous one has the longest common prefix
        shared[after] = _common(sequences[before], sequences[after])
    if not shared.any():
        return None
    own = np.ones(len(tokens), bool)
    for start, count in zip(starts, shared, strict=False):
        own[start : start + count] = False
    row = np.cumsum(own) - 1
    for before, after in pairwise(alike):
        row[starts[after] :][: shared[after]] = row[starts[before] :][: shared[after]]
    new = np.asarray(lengths, np.int64) - shared
    return SharedPrefixes(torch.from_numpy(own.nonzero()[0]), torch.from_numpy(row), torch.from_numpy(new))


def _common(a: Numbers, b: Numbers) -> int:
    """Return the length of the longest common prefix."""
    length = min(len(a), len(b))
    differ = (a[:length] != b[:length]).nonzero()[0]
    return int(differ[0]) if len(differ) else length


def share(backend: TorchNativeAttnBackend, forward_batch: ForwardBatch) -> None:
    """Before hook of `TorchNativeAttnBackend.init_forward_metadata`, the last hook that sees a pass's input."""
    if prefixes_of(forward_batch) is None and _is_plain(backend, forward_batch):
        whole = [prefix == 0 for prefix in forward_batch.extend_prefix_lens.tolist()]
        shared = shared_prefixes(forward_batch.input_ids.numpy(), forward_batch.extend_seq_lens.tolist(), whole)
        if shared is not None:
            forward_batch.shared_prefixes = shared
            forward_batch.input_ids = forward_batch.input_ids.index_select(0, shared.own)
            forward_batch.positions = forward_batch.positions.index_select(0, shared.own)
    backend.shared_prefixes = prefixes_of(forward_batch)  # of the pass, for code that does not get its batch


def _is_plain(backend: TorchNativeAttnBackend, forward_batch: ForwardBatch) -> bool:
    """Return whether a pass prefills text with attention only: other layers may need whole sequences."""
    return (
        forward_batch.forward_mode.name == "EXTEND"
        and type(backend.token_to_kv_pool).__name__ == "MHATokenToKVPool"
        and forward_batch.input_embeds is None
        and forward_batch.encoder_lens is None
        and forward_batch.mrope_positions is None
        and forward_batch.replace_embeds is None
        and not any(forward_batch.mm_inputs or ())
        and not any(forward_batch.lora_ids or ())
        and not forward_batch.capture_hidden_mode.need_capture()
    )


def extend(
    original: Callable[..., torch.Tensor],
    backend: TorchNativeAttnBackend,
    query: torch.Tensor,
    keys: torch.Tensor | None,
    values: torch.Tensor | None,
    layer: RadixAttention,
    forward_batch: ForwardBatch,
    save_kv_cache: bool = True,
) -> torch.Tensor:
    """Around hook of `TorchNativeAttnBackend.forward_extend`. query, keys, values: rows first."""
    shared = prefixes_of(forward_batch)
    if shared is None:
        return original(backend, query, keys, values, layer, forward_batch, save_kv_cache)
    if keys is not None and values is not None:
        keys, values = keys.index_select(0, shared.row), values.index_select(0, shared.row)
    if layer.sliding_window_size is not None and layer.sliding_window_size > -1:  # SGLang's own, for whole sequences
        whole = query.index_select(0, shared.row)
        return original(backend, whole, keys, values, layer, forward_batch, save_kv_cache).index_select(0, shared.own)
    own_rows = copy.copy(forward_batch)
    own_rows.extend_seq_lens = shared.new
    return original(backend, query, keys, values, layer, own_rows, save_kv_cache)


def logits(
    original: Callable[..., LogitsProcessorOutput],
    processor: LogitsProcessor,
    input_ids: torch.Tensor,
    hidden: torch.Tensor,
    lm_head: torch.nn.Module,
    forward_batch: ForwardBatch,
    *rest: object,
    **options: object,
) -> LogitsProcessorOutput:
    """Around hook of `LogitsProcessor.forward`. hidden [rows, features] -> [tokens, features]."""
    shared = prefixes_of(forward_batch)
    if shared is not None:
        hidden = hidden.index_select(0, shared.row)
    return original(processor, input_ids, hidden, lm_head, forward_batch, *rest, **options)


def prefixes_of(part: ForwardBatch | AttentionBackend) -> SharedPrefixes | None:
    """Return the result of `share` for a batch, or for the last pass of a backend; None if nothing is shared, and in
    passes that it does not see.
    """
    return getattr(part, "shared_prefixes", None)
