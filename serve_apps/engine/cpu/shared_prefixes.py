"""Common prefixes of the sequences of a forward pass are computed once.

The samples of a group have one prompt, and those that SGLang retracted for new weights share response tokens too.
SGLang's prefix cache serves samples that arrive after a prompt was prefilled; on a CPU they arrive together. So every
forward pass computes each different prefix once and copies its rows: keys and values go into the cache slots of each
sequence, the last hidden states to the logits of each. A row depends only on the tokens up to its own (`layers`,
`attention`), so its bits are those that every sequence would have computed for itself.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """own [rows]: indices of the computed tokens. row [tokens]: each token's index among the computed rows.

    new [sequences]: computed tokens of each sequence: its last ones, which it shares with no other.
    """

    own: torch.Tensor
    row: torch.Tensor
    new: torch.Tensor


def shared_prefixes(tokens: Numbers, lengths: Sequence[int], whole: Sequence[bool]) -> SharedPrefixes | None:
    """tokens: of all sequences, one after another. whole: whether nothing of a sequence was cached before;
    others share nothing. None where no token is shared."""
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
    """Length of their longest common prefix."""
    length = min(len(a), len(b))
    differ = (a[:length] != b[:length]).nonzero()[0]
    return int(differ[0]) if len(differ) else length


def share(backend: Any, forward_batch: Any) -> None:
    """Before hook of `TorchNativeAttnBackend.init_forward_metadata`, the last hook that sees a pass's input."""
    if _shared(forward_batch) is not None or not _is_plain(backend, forward_batch):
        return
    whole = [prefix == 0 for prefix in forward_batch.extend_prefix_lens.tolist()]
    shared = shared_prefixes(forward_batch.input_ids.numpy(), forward_batch.extend_seq_lens.tolist(), whole)
    if shared is not None:
        forward_batch.shared_prefixes = shared
        forward_batch.input_ids = forward_batch.input_ids.index_select(0, shared.own)
        forward_batch.positions = forward_batch.positions.index_select(0, shared.own)


def _is_plain(backend: Any, forward_batch: Any) -> bool:
    """Whether a pass prefills text with attention alone: other layers may want whole sequences."""
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
    backend: Any,
    query: torch.Tensor,
    keys: torch.Tensor | None,
    values: torch.Tensor | None,
    layer: Any,
    forward_batch: Any,
    save_kv_cache: bool = True,
) -> torch.Tensor:
    """Around hook of `TorchNativeAttnBackend.forward_extend`. query, keys, values: rows first."""
    shared = _shared(forward_batch)
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
    original: Callable[..., Any],
    processor: Any,
    input_ids: torch.Tensor,
    hidden: torch.Tensor,
    lm_head: Any,
    forward_batch: Any,
    *rest: Any,
    **options: Any,
) -> Any:
    """Around hook of `LogitsProcessor.forward`. hidden [rows, features] -> [tokens, features]."""
    shared = _shared(forward_batch)
    if shared is not None:
        hidden = hidden.index_select(0, shared.row)
    return original(processor, input_ids, hidden, lm_head, forward_batch, *rest, **options)


def _shared(forward_batch: Any) -> SharedPrefixes | None:
    """The result of `share`; None where nothing is shared, and in passes that it does not see."""
    return getattr(forward_batch, "shared_prefixes", None)
