"""Seeded sampling on a CPU: a token's noise is a hash of (seed, absolute position, token id) and nothing else.

The hash is MurmurHash3 (Appleby, x86_32) over four 32-bit blocks: seed low, seed high, position, column.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

UInt32 = npt.NDArray[np.uint32]

_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
_ADD = np.uint32(0xE6546B64)
_FINAL1, _FINAL2 = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_BYTES = np.uint32(16)


def _rotate(words: UInt32, bits: int) -> UInt32:
    return (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))


def _scramble(block: UInt32) -> UInt32:
    """Return the part of a block's mixing that does not depend on the hash so far."""
    return _rotate(block * _C1, 15) * _C2


@lru_cache(maxsize=4)
def _scrambled_columns(count: int) -> UInt32:
    return _scramble(np.arange(count, dtype=np.uint32))


def murmur_hash32(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64], columns: int) -> UInt32:
    """Hash (seed, position, column) for every row and for columns 0 .. columns-1.

    `seeds` is uint64 [rows], `positions` int64 [rows], taken modulo 2**32. Returns uint32 [rows, columns].
    """
    state: UInt32 = np.zeros(len(seeds), dtype=np.uint32)
    for block in (seeds & np.uint64(0xFFFFFFFF), seeds >> np.uint64(32), positions):
        state = _rotate(state ^ _scramble(block.astype(np.uint32)), 13) * np.uint32(5) + _ADD
    h = state[:, None] ^ _scrambled_columns(columns)[None, :]
    # In place from here: rows x columns is the whole vocabulary for every running request.
    spare = h >> np.uint32(19)
    h <<= np.uint32(13)
    h |= spare
    h *= np.uint32(5)
    h += _ADD
    h ^= _BYTES
    for shift, factor in ((16, _FINAL1), (13, _FINAL2), (16, None)):
        np.right_shift(h, np.uint32(shift), out=spare)
        h ^= spare
        if factor is not None:
            h *= factor
    return h


def seeded_choice(
    log_probs: npt.NDArray[np.float64], seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Draw one column per row from exp(log_probs) by Gumbel-max with hashed noise, as SGLang does on accelerators.

    `log_probs` is float64 [rows, columns], -inf for a column that may not be drawn. Returns int64 [rows, 1].
    """
    noise = murmur_hash32(seeds, positions, log_probs.shape[1]).astype(np.float64)
    noise *= 1.0 / 0xFFFFFFFF
    with np.errstate(divide="ignore"):
        np.log(noise, out=noise)
    np.clip(noise, np.finfo(np.float64).min, -(2.0**-32), out=noise)
    np.negative(noise, out=noise)
    np.log(noise, out=noise)
    chosen: npt.NDArray[np.int64] = np.argmax(log_probs - noise, axis=1, keepdims=True).astype(np.int64)
    return chosen


def multinomial_with_seed(log_probs: torch.Tensor, seed: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Replace SGLang's function without torch.compile, which needs a C++ compiler and seconds at first use."""
    import torch

    chosen = seeded_choice(
        log_probs.to(torch.float64).numpy(),
        seed.to(torch.int64).numpy().view(np.uint64),
        positions.to(torch.int64).numpy(),
    )
    return torch.from_numpy(chosen)


def filtered_choice(
    original: Callable[..., Any],
    probs: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    min_ps: torch.Tensor,
    need_min_p_sampling: bool,
    sampling_seed: torch.Tensor | None,
    positions: torch.Tensor,
    **options: Any,
) -> Any:
    """Around hook of SGLang's sampling with top-k and top-p: take the noise by token id, not by rank.

    SGLang uses this function for a whole batch as soon as one request in it has a top-k or top-p (greedy is top-k 1).
    With noise by rank, every other request would then draw other tokens than in another batch.
    """
    import torch

    if sampling_seed is None or need_min_p_sampling:
        return original(probs, top_ks, top_ps, min_ps, need_min_p_sampling, sampling_seed, positions, **options)
    log_probs = torch.log(probs)
    narrow = ((top_ks < probs.shape[1]) | (top_ps < 1.0)).nonzero().flatten()
    if len(narrow):
        log_probs[narrow] = _narrowed(log_probs[narrow], top_ks[narrow], top_ps[narrow])
    chosen = multinomial_with_seed(log_probs, sampling_seed, positions).view(-1, 1)
    drawn = chosen.view(-1).to(torch.int32)
    if not options.get("return_filtered_probs"):
        return drawn
    weights = log_probs.exp()
    ordered, ids = weights.sort(dim=-1, descending=True, stable=True)  # SGLang reads as many as remain
    return drawn, ordered, ids.to(torch.int32), weights.gather(1, chosen).view(-1)


def _narrowed(log_probs: torch.Tensor, top_ks: torch.Tensor, top_ps: torch.Tensor) -> torch.Tensor:
    """Set -inf for tokens beyond each row's k likeliest, or beyond the fewest that hold its p. [rows, vocabulary]."""
    import torch

    ordered, columns = log_probs.sort(dim=-1, descending=True, stable=True)
    probs = ordered.exp()
    before = probs.cumsum(dim=-1) - probs
    ranks = torch.arange(log_probs.shape[1]).view(1, -1)
    ordered[(ranks >= top_ks.view(-1, 1)) | (before > top_ps.view(-1, 1))] = -torch.inf
    return torch.empty_like(log_probs).scatter_(1, columns, ordered)
