"""Attention for SGLang's `torch_native` backend, batched and bit for bit independent of the batch.

SGLang's own runs one SDPA call per sequence and layer, which is most of a decode step of a small model. Here sequences
go together, every new token as a query of its own over its cached keys, padded with the padding masked. Measured on
AVX2 and AVX-512 with MKL 2024: a row's result has then the same bits for any padding, any neighbours, and whether its
token was decoded or prefilled, so that a resumed rollout can go on exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from serve_apps.engine.cpu.attention_parts import Part, Sequences


def forget_parts(backend: Any, forward_batch: Any) -> None:
    """Before hook of `TorchNativeAttnBackend.init_forward_metadata`, with which every forward pass begins."""
    backend.forward_metadata = {}


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
    for part in _parts(backend, query, k_cache, req_to_token, req_pool_indices, seq_lens):
        _attend(part, query, output, k_cache, v_cache, options.get("scaling"))
    return output


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
    for part in _parts(backend, query, k_cache, req_to_token, req_pool_indices, seq_lens, extend_seq_lens):
        _attend(part, query, output, k_cache, v_cache, options.get("scaling"))
    return output


def _parts(
    backend: Any,
    query: torch.Tensor,
    k_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    new: torch.Tensor | None = None,
) -> list[Part]:
    """This forward pass in parts, made for its first layer and kept for all that have as many heads."""
    heads = (query.shape[1], *k_cache.shape[1:])
    parts: list[Part] | None = backend.forward_metadata.get(heads)
    if parts is None:
        key_elements = k_cache.shape[1] * k_cache.shape[2]
        sequences = Sequences(req_to_token, req_pool_indices, seq_lens, query.shape[1], key_elements, query.dtype)
        parts = sequences.decoded() if new is None else sequences.extended(new)
        backend.forward_metadata[heads] = parts
    return parts


def _attend(
    part: Part,
    query: torch.Tensor,
    output: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    scale: float | None,
) -> None:
    """Fill output[part.rows]; shapes as in `decode`."""
    rows = query[part.rows] if isinstance(part.rows, slice) else query.index_select(0, part.rows)
    sequences, heads = len(part.mask), query.shape[1]
    keys, values = _gather(k_cache, part, query.dtype), _gather(v_cache, part, query.dtype)
    # To SDPA the tokens of a sequence are so many more heads over the same keys: each is a query of its own.
    by_head = rows.view(sequences, part.tokens, heads, -1).transpose(1, 2).reshape(sequences, -1, 1, query.shape[2])
    attended = scaled_dot_product_attention(
        by_head, keys, values, attn_mask=part.mask, scale=scale, enable_gqa=by_head.shape[1] != keys.shape[1]
    )
    output[part.rows] = attended.view(sequences, heads, part.tokens, -1).transpose(1, 2).flatten(0, 1)


def _gather(cache: torch.Tensor, part: Part, dtype: torch.dtype) -> torch.Tensor:
    """cache [slots, kv_heads, dim] -> [sequences, kv_heads, padded, dim]; index_select is quicker than indexing."""
    rows = cache.index_select(0, part.slots).to(dtype)
    return rows.view(-1, part.mask.shape[-1], *cache.shape[1:]).transpose(1, 2).expand(len(part.mask), -1, -1, -1)
