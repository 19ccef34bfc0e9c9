"""What SGLang 0.5.23 lacks for deterministic inference on a CPU: a seeded sampler, and leave to run.

The noise is MurmurHash3 (Appleby, x86_32) over four 32-bit blocks: seed low, seed high, position, column.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

UInt32 = npt.NDArray[np.uint32]

_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
_ADD = np.uint32(0xE6546B64)
_FINAL1, _FINAL2 = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_LENGTH = np.uint32(16)


def _rotate(words: UInt32, bits: int) -> UInt32:
    return (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))


def _scramble(block: UInt32) -> UInt32:
    """The part of a block's mixing that does not depend on the hash so far."""
    return _rotate(block * _C1, 15) * _C2


def _mix(state: UInt32, scrambled: UInt32) -> UInt32:
    return _rotate(state ^ scrambled, 13) * np.uint32(5) + _ADD


@lru_cache(maxsize=4)
def _scrambled_columns(count: int) -> UInt32:
    return _scramble(np.arange(count, dtype=np.uint32))


def murmur_hash32(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64], columns: UInt32) -> UInt32:
    """Hash of every (row, column).

    seeds: uint64 [rows]. positions: [rows], taken modulo 2**32. columns: uint32 [columns], already scrambled.
    Returns uint32 [rows, columns].
    """
    low = (seeds & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    high = (seeds >> np.uint64(32)).astype(np.uint32)
    state: UInt32 = np.zeros(len(seeds), dtype=np.uint32)
    for block in (low, high, positions.astype(np.uint32)):
        state = _mix(state, _scramble(block))
    h = state[:, None] ^ columns[None, :]
    spare = h >> np.uint32(19)
    h <<= np.uint32(13)
    h |= spare
    h *= np.uint32(5)
    h += _ADD
    h ^= _LENGTH
    for shift, factor in ((16, _FINAL1), (13, _FINAL2), (16, None)):
        np.right_shift(h, np.uint32(shift), out=spare)
        h ^= spare
        if factor is not None:
            h *= factor
    return h


def seeded_choice(
    log_probs: npt.NDArray[np.float64], seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """One column per row, drawn from exp(log_probs) by Gumbel-max with hashed noise, as SGLang does on accelerators.

    log_probs: float64 [rows, columns]. Returns int64 [rows, 1].
    """
    hashed = murmur_hash32(seeds, positions, _scrambled_columns(log_probs.shape[1]))
    uniform = hashed.astype(np.float64)
    uniform *= 1.0 / 0xFFFFFFFF
    with np.errstate(divide="ignore"):
        np.log(uniform, out=uniform)
    np.clip(uniform, np.finfo(np.float64).min, -(2.0**-32), out=uniform)
    np.negative(uniform, out=uniform)
    np.log(uniform, out=uniform)
    return np.argmax(log_probs - uniform, axis=1, keepdims=True).astype(np.int64)


def multinomial_with_seed(log_probs: torch.Tensor, seed: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """SGLang's function of that name, without torch.compile (which needs a C++ compiler and seconds at first use)."""
    import torch

    chosen = seeded_choice(
        log_probs.to(torch.float64).numpy(),
        seed.to(torch.int64).numpy().view(np.uint64),
        positions.to(torch.int64).numpy(),
    )
    return torch.from_numpy(chosen)


def _enable_nothing(enable_bmm: bool = True) -> None:
    """Kernels that are batch-invariant exist for accelerators; eager float32 on CPU is checked by our tests instead."""


def install() -> None:
    """Register the hooks with SGLang; its `load_plugins` applies them after this returns."""
    from sglang.srt.arg_groups import choices
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if "torch_native" not in choices.DETERMINISTIC_ATTENTION_BACKEND_CHOICES:
        choices.add_deterministic_attention_backend_choices(["torch_native"])
    HookRegistry.register("sglang.srt.layers.sampler.multinomial_with_seed", multinomial_with_seed, HookType.REPLACE)
    HookRegistry.register("sglang.srt.batch_invariant_ops.enable_batch_invariant_mode", _enable_nothing, HookType.REPLACE)
