"""Digests of named tensors: for `weights.published` and `step.committed`, whose bytes are stored elsewhere.

A digest depends on names, dtypes, shapes and bytes alone: not on the order, the file layout or the device. Each tensor
has one of its own, so they are hashed side by side on all cores.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

TensorBytes = bytes | bytearray | memoryview
SHA256 = r"\A[0-9a-f]{64}\Z"
"""The form of a hex sha256: what comes from outside is a part of a path only where it has it."""
AT_ONCE_BYTES = 1024**3
"""Of tensors that are hashed or wait for it: those of an accelerator are copies."""


class TensorDigest(msgspec.Struct, frozen=True):
    """One tensor. dtype: safetensors' name (`F32`, `BF16`, `I64` ...). sha256: hex, of its little-endian bytes."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str

    @classmethod
    def of(cls, dtype: str, shape: Iterable[int], data: TensorBytes) -> TensorDigest:
        """Digest of `data`, the tensor's contiguous bytes."""
        return cls(dtype, tuple(shape), hashlib.sha256(data).hexdigest())


@functools.cache
def hashing() -> ThreadPoolExecutor:
    """The threads of this process that hash, one for each core: they do not hold the interpreter's lock."""
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="hashing")


def tensor_digests(named: Iterable[tuple[str, tuple[str, Iterable[int], TensorBytes]]]) -> dict[str, TensorDigest]:
    """name -> digest, of (name, (dtype, shape, bytes)); some tensors at a time, so that a stream need not be held."""
    digests, under_way = dict[str, Future[TensorDigest]](), deque[tuple[str, int]]()
    held = 0
    for name, tensor in named:
        size = memoryview(tensor[2]).nbytes
        while under_way and held + size > AT_ONCE_BYTES:
            first, freed = under_way.popleft()
            digests[first].result()
            held -= freed
        digests[name] = hashing().submit(TensorDigest.of, *tensor)
        under_way.append((name, size))
        held += size
    return {name: digest.result() for name, digest in digests.items()}


def weights_digest(digests: Mapping[str, TensorDigest]) -> str:
    """Hex sha256 over the sorted lines `name dtype AxBxC sha256`, each ended by a newline."""
    total = hashlib.sha256()
    for name, digest in sorted(digests.items()):
        shape = "x".join(str(size) for size in digest.shape)
        total.update(f"{name} {digest.dtype} {shape} {digest.sha256}\n".encode())
    return total.hexdigest()
