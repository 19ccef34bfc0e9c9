"""`Stream`: the tensors of a weight version that arrives over gloo, while earlier tensors are checked and loaded.

SGLang's loader iterates over it. Buckets arrive in buffers that are used again, because new pages of memory cost more
than the bytes that they take. Each bucket is received and checked in a thread, and the loader gets it after that.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np

from schemas.doc import doc
from schemas.errors import WeightsDamaged
from storage.digests import TensorDigest, hashing
from storage.weights.broadcast import STREAM_BYTES, STREAM_DEPTH
from storage.weights.manifest import StoredTensor, tensor_bytes

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

TORCH_TYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"},
    **{"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool"},
    **{"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"},
}
"""torch's names of safetensors' types."""


def difference(name: str, stored: StoredTensor, data: memoryview) -> str:
    """Return how a tensor's bytes differ from the manifest; empty if they do not."""
    actual = TensorDigest.of(stored.dtype, stored.shape, data).sha256
    if actual == stored.sha256:
        return ""
    return f"tensor {name!r} was received with sha256 {actual}, not {stored.sha256} as in the manifest"


class Buffers:
    """Memory for buckets. A buffer is used again after the last tensor in it is gone."""

    def __init__(self) -> None:
        self._free = list[np.ndarray]()
        self._used = list[tuple[weakref.ref[np.ndarray], np.ndarray]]()

    def get(self, size: int) -> np.ndarray:
        """Return memory of `size` bytes. It is taken back when nobody has the array, or a tensor on it."""
        used, self._used = self._used, []
        for reference, memory in used:
            if reference() is not None:
                self._used.append((reference, memory))
            elif memory.size == STREAM_BYTES:  # others are of tensors with a bucket of their own
                self._free.append(memory)
        if size <= STREAM_BYTES and self._free:
            memory = self._free.pop()
        else:
            memory = np.empty(max(size, STREAM_BYTES), np.uint8)
        array = memory[:size]
        self._used.append((weakref.ref(array), memory))
        return array


class _Bucket(NamedTuple):
    """A bucket on its way."""

    names: list[str]
    tensor: torch.Tensor
    checked: Annotated[Future[str], doc("Why it cannot be loaded; empty if it can.")]


class Stream:
    """Can be iterated once. vote: returns whether all ranks of this engine are well.

    All ranks vote after each bucket and after the last tensor is loaded, so a rank whose loader fails tells the others
    by its next vote. Raises WeightsDamaged while it is iterated; nothing of that bucket was loaded.
    """

    def __init__(
        self,
        group: ProcessGroup,
        buckets: list[list[str]],
        expected: Mapping[str, StoredTensor],
        vote: Callable[[bool], bool],
    ) -> None:
        self._group, self._expected, self._vote = group, expected, vote
        self._rest, self._buffers = iter(buckets), Buffers()

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        on_way, has_voted = deque(map(self._receive, islice(self._rest, STREAM_DEPTH))), False
        try:
            while on_way:
                bucket = on_way.popleft()
                problem = bucket.checked.result()
                has_voted = bool(problem)
                self._agree(problem)
                tensors = self._tensors(bucket)
                del bucket
                on_way.extend(map(self._receive, islice(self._rest, 1)))
                while tensors:
                    yield tensors.pop()
            has_voted = True
            self._agree("")
        except WeightsDamaged:
            has_voted = True
            raise
        finally:
            if not has_voted:  # the loader has failed
                self._vote(False)

    def _agree(self, problem: str) -> None:
        if not self._vote(not problem):
            raise WeightsDamaged(problem or "another rank of this engine has received other weights")

    def _receive(self, names: list[str]) -> _Bucket:
        import torch

        size = sum(tensor_bytes(self._expected[name]) for name in names)
        tensor = torch.from_numpy(self._buffers.get(size))
        work = torch.distributed.broadcast(tensor, src=0, group=self._group, async_op=True)
        return _Bucket(names, tensor, hashing().submit(self._problem, names, tensor, work))

    def _problem(self, names: list[str], tensor: torch.Tensor, work: Any) -> str:
        """Wait for a bucket, and return why it cannot be loaded."""
        try:
            work.wait()
        except RuntimeError as error:  # the sender is gone, or a member
            return f"{type(error).__name__}: {error}"
        data, start = tensor.numpy().data, 0
        for name in names:
            end = start + tensor_bytes(self._expected[name])
            if problem := difference(name, self._expected[name], data[start:end]):
                return problem
            start = end
        return ""

    def _tensors(self, bucket: _Bucket) -> list[tuple[str, torch.Tensor]]:
        """Return the tensors, the first at the end."""
        import torch

        tensors, start = list[tuple[str, Any]](), 0
        for name in bucket.names:
            stored = self._expected[name]
            end = start + tensor_bytes(stored)
            dtype = getattr(torch, TORCH_TYPES[stored.dtype])
            tensors.append((name, bucket.tensor[start:end].view(dtype).reshape(stored.shape)))
            start = end
        return tensors[::-1]
