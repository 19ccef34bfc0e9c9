"""Digests of named tensors, for `weights.published` and `step.committed`.

A digest depends on names, dtypes, shapes and bytes only: not on order, file layout or device. Each tensor has its own
digest, so tensors are hashed in parallel on all cores.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Annotated

import msgspec

from schemas.doc import doc

TensorBytes = bytes | bytearray | memoryview
SHA256 = r"\A[0-9a-f]{64}\Z"
"""Pattern of a hex sha256. Text from outside must match it before it becomes a part of a path."""
AT_HAND_BYTES = 256 * 1024
"""Smaller tensors are hashed by the calling thread, as a hand-over to another one takes as long as their hashing."""
AT_ONCE_BYTES = 1024**3
"""Most bytes of tensors that are hashed or wait: tensors of an accelerator are copied to the host."""


class TensorDigest(msgspec.Struct, frozen=True):
    """Digest of one tensor."""

    dtype: Annotated[str, doc("safetensors' name of the dtype, such as `F32`, `BF16` or `I64`.")]
    shape: tuple[int, ...]
    sha256: Annotated[str, doc("sha256 (hex) of the little-endian bytes.")]

    @classmethod
    def of(cls, dtype: str, shape: Iterable[int], data: TensorBytes) -> TensorDigest:
        """Return the digest of `data`, the tensor's contiguous bytes."""
        return cls(dtype, tuple(shape), hashlib.sha256(data).hexdigest())


@functools.cache
def hashing() -> ThreadPoolExecutor:
    """Return this process's hashing threads, one per core. Hashing releases the interpreter's lock."""
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="hashing")


def digest_soon(dtype: str, shape: Iterable[int], data: TensorBytes) -> Future[TensorDigest]:
    """Return the digest of a tensor, which a thread computes if the tensor is large."""
    if memoryview(data).nbytes >= AT_HAND_BYTES:
        return hashing().submit(TensorDigest.of, dtype, shape, data)
    done = Future[TensorDigest]()
    done.set_result(TensorDigest.of(dtype, shape, data))
    return done


def tensor_digests(named: Iterable[tuple[str, tuple[str, Iterable[int], TensorBytes]]]) -> dict[str, TensorDigest]:
    """Return digests by name, of (name, (dtype, shape, bytes)). Only AT_ONCE_BYTES of a stream are held."""
    digests, under_way = dict[str, Future[TensorDigest]](), deque[tuple[str, int]]()
    held = 0
    for name, tensor in named:
        size = memoryview(tensor[2]).nbytes
        while under_way and held + size > AT_ONCE_BYTES:
            first, freed = under_way.popleft()
            digests[first].result()
            held -= freed
        digests[name] = digest_soon(*tensor)
        under_way.append((name, size))
        held += size
    return {name: digest.result() for name, digest in digests.items()}


def weights_digest(digests: Mapping[str, TensorDigest]) -> str:
    """Return the hex sha256 over the sorted lines `name dtype AxBxC sha256`, each ended by a newline."""
    total = hashlib.sha256()
    for name, digest in sorted(digests.items()):
        shape = "x".join(str(size) for size in digest.shape)
        total.update(f"{name} {digest.dtype} {shape} {digest.sha256}\n".encode())
    return total.hexdigest()
