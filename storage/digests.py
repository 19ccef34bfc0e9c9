"""Digests of named tensors: for `weights.published` and `step.committed`, whose bytes are stored elsewhere.

A digest depends on names, dtypes, shapes and bytes alone: not on the order, the file layout or the device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import msgspec

TensorBytes = bytes | bytearray | memoryview


class TensorDigest(msgspec.Struct, frozen=True):
    """One tensor. dtype: safetensors' name (`F32`, `BF16`, `I64` ...). sha256: hex, of its little-endian bytes."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str

    @classmethod
    def of(cls, dtype: str, shape: Iterable[int], data: TensorBytes) -> TensorDigest:
        """Digest of `data`, the tensor's contiguous bytes."""
        return cls(dtype, tuple(shape), hashlib.sha256(data).hexdigest())


def tensor_digests(named: Iterable[tuple[str, tuple[str, Iterable[int], TensorBytes]]]) -> dict[str, TensorDigest]:
    """name -> digest, of (name, (dtype, shape, bytes)); one tensor at a time, so that a stream need not be held."""
    return {name: TensorDigest.of(*tensor) for name, tensor in named}


def weights_digest(digests: Mapping[str, TensorDigest]) -> str:
    """Hex sha256 over the sorted lines `name dtype AxBxC sha256`, each ended by a newline."""
    total = hashlib.sha256()
    for name, digest in sorted(digests.items()):
        shape = "x".join(str(size) for size in digest.shape)
        total.update(f"{name} {digest.dtype} {shape} {digest.sha256}\n".encode())
    return total.hexdigest()
