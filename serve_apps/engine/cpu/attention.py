"""Attention for SGLang's `torch_native` backend, batched and bit for bit independent of the batch.

SGLang's own runs one SDPA call per sequence and layer, which is most of a decode step of a small model. Here sequences
go together, every new token as a query of its own over its cached keys, padded to a multiple of `BLOCK` with the
padding masked. Measured on AVX-512 with MKL 2024: a row's result has then the same bits for any padding, any
neighbours, and whether its token was decoded or prefilled, so that a resumed rollout can go on exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

BLOCK = 16
GATHERED_ELEMENTS = 1 << 23
"""Most elements of keys gathered at once (32 MiB in float32); longer batches go in parts."""
COPIED_ELEMENTS = 1 << 15
"""A prompt whose keys, copied for each of its tokens, are fewer goes with others: cheaper than a call of its own."""


def _padded(length: int) -> int:
    return -(-length // BLOCK) * BLOCK


def _attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, lengths: torch.Tensor, scale: float | None
) -> torch.Tensor:
    """query [rows, heads, dim]; keys, values [rows, padded, kv_heads, dim]; lengths [rows]: keys each row may see."""
    visible = torch.arange(keys.shape[1])[None, :] < lengths[:, None]
    return scaled_dot_product_attention(
        query.unsqueeze(2),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=visible[:, None, None, :],
        scale=scale,
        enable_gqa=query.shape[1] != keys.shape[2],
    ).squeeze(2)


def _parts(lengths: torch.Tensor, elements_per_key: int) -> Iterator[torch.Tensor]:
    """Row numbers in parts of alike padded length, none above `GATHERED_ELEMENTS`."""
    powers = torch.frexp(
        (lengths + BLOCK - 1) // BLOCK * BLOCK - 1.0
    ).exponent  # lengths up to 2**power, at least BLOCK
    for power in torch.unique(powers).tolist():
        rows = (powers == power).nonzero().flatten()
        yield from torch.split(rows, max(1, GATHERED_ELEMENTS // (elements_per_key << power)))


def _attend_rows(
    query: torch.Tensor,
    output: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    requests: torch.Tensor,
    lengths: torch.Tensor,
    scale: float | None,
) -> None:
    """Fill output[rows]. requests, lengths [rows]: whose keys a row sees, and how many. Other shapes as in decode."""
    for part in _parts(lengths, k_cache.shape[1] * k_cache.shape[2]):
        seen, chosen = lengths[part], rows[part]
        slots = _slots(req_to_token, requests[part], seen, _padded(int(seen.max())))
        keys, values = _gather(k_cache, slots, query.dtype), _gather(v_cache, slots, query.dtype)
        output[chosen] = _attend(query[chosen], keys, values, seen, scale)


def decode(
    original: Callable[..., torch.Tensor],
    backend: Any,
    query: torch.Tensor,
    output: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    encoder_lens: torch.Tensor | None = None,
    **options: Any,
) -> torch.Tensor:
    """Around hook of `TorchNativeAttnBackend._run_sdpa_forward_decode`; cross and windowed attention go to SGLang's.

    query, output: [rows, heads, dim]. caches: [slots, kv_heads, dim]. req_to_token: [requests, context], slot numbers.
    """
    if encoder_lens is not None or options.get("is_cross_attn") or options.get("sliding_window_size") is not None:
        return original(
            backend, query, output, k_cache, v_cache, req_to_token, req_pool_indices, seq_lens, encoder_lens, **options
        )
    rows = torch.arange(len(seq_lens))
    scale = options.get("scaling")
    _attend_rows(query, output, k_cache, v_cache, req_to_token, rows, req_pool_indices, seq_lens, scale)
    return output


def _slots(table: torch.Tensor, requests: torch.Tensor, lengths: torch.Tensor, padded: int) -> torch.Tensor:
    """table [requests, context] -> slot numbers [rows, padded]; slot 0 (SGLang's spare one) where there is no token."""
    width = min(padded, table.shape[1])
    slots = table.new_zeros((len(requests), padded))
    slots[:, :width] = table[:, :width][requests]
    return slots.masked_fill_(torch.arange(padded)[None, :] >= lengths[:, None], 0)


def _gather(cache: torch.Tensor, slots: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """cache [slots, kv_heads, dim] at slots [rows, padded]; index_select is several times quicker than indexing."""
    return cache.index_select(0, slots.flatten()).view(*slots.shape, *cache.shape[1:]).to(dtype)


def extend(
    original: Callable[..., torch.Tensor],
    backend: Any,
    query: torch.Tensor,
    output: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_prefix_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    encoder_lens: torch.Tensor | None = None,
    **options: Any,
) -> torch.Tensor:
    """Around hook of `TorchNativeAttnBackend._run_sdpa_forward_extend`, shapes as in `decode`, rows = new tokens."""
    special = encoder_lens is not None or options.get("is_cross_attn") or not options.get("causal")
    if special or options.get("sliding_window_size") is not None:
        return original(
            backend, query, output, k_cache, v_cache, req_to_token, req_pool_indices, seq_lens,
            extend_prefix_lens, extend_seq_lens, encoder_lens, **options,
        )  # fmt: skip
    scale, keys_each = options.get("scaling"), k_cache.shape[1] * k_cache.shape[2]
    starts = extend_seq_lens.cumsum(0) - extend_seq_lens
    short = extend_seq_lens * seq_lens * keys_each <= COPIED_ELEMENTS
    rows = torch.repeat_interleave(short, extend_seq_lens).nonzero().flatten()
    if len(rows):
        requests = torch.repeat_interleave(req_pool_indices, extend_seq_lens)[rows]
        lengths = torch.repeat_interleave(extend_prefix_lens - starts + 1, extend_seq_lens)[rows] + rows
        _attend_rows(query, output, k_cache, v_cache, req_to_token, rows, requests, lengths, scale)
    for sequence in (~short).nonzero().flatten().tolist():
        start, new, length = (int(t[sequence]) for t in (starts, extend_seq_lens, seq_lens))
        one = req_pool_indices[sequence : sequence + 1]
        slots = _slots(req_to_token, one, torch.tensor([length]), _padded(length))
        keys, values = _gather(k_cache, slots, query.dtype), _gather(v_cache, slots, query.dtype)
        output[start : start + new] = _attend(
            query[start : start + new],
            keys.expand(new, -1, -1, -1),
            values.expand(new, -1, -1, -1),
            torch.arange(length - new + 1, length + 1),
            scale,
        )
    return output
