"""`write_shards`: write tensors as safetensors files of an incomplete version.

Several processes may write concurrently, each its own tensors under its own prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

from schemas.doc import doc
from storage.digests import TensorDigest
from storage.object_store import file_errors
from storage.weights.files import PYTORCH, TensorView, view, write_shard

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined]  # a typing-only name before Python 3.12

    TensorBytes: TypeAlias = tuple[str, str, tuple[int, ...], Buffer]
    """HF name, safetensors dtype (`F32`, `BF16`), shape, contiguous little-endian bytes."""
else:
    TensorBytes = tuple

SHARD_BYTES = 1024**3
"""Most bytes of one safetensors file. A writing process holds one file and the next tensor in memory."""


class Shard(NamedTuple):
    """One written file."""

    file: Annotated[str, doc("Its name until the version is complete.")]
    digests: Annotated[dict[str, TensorDigest], doc("Digests of its tensors, by name.")]


def write_shards(
    folder: Path,
    prefix: str,
    tensors: Iterable[TensorBytes],
    *,
    max_bytes: int = SHARD_BYTES,
    durable: bool = True,
    metadata: Mapping[str, str] | None = None,
) -> list[Shard]:
    """Write tensors into the folder, one at a time. durable: fsync before returning.

    metadata: a text for each tensor, there when the tensor is yielded, for the header of its file.

    Raises NoSpace, StoreUnavailable, and CheckpointMismatch for a tensor whose bytes do not fit its dtype and shape.
    """
    written: list[Shard] = []
    with file_errors(str(folder)):
        for shard in _split(tensors, max_bytes):
            name = f"{prefix}-{len(written)}"
            texts = PYTORCH if metadata is None else {tensor: metadata[tensor] for tensor in shard}
            written.append(Shard(name, write_shard(folder / name, shard, durable=durable, metadata=texts)))
            del shard  # or it would be held until the next one is whole
    return written


def _split(tensors: Iterable[TensorBytes], max_bytes: int) -> Iterator[dict[str, TensorView]]:
    shard: dict[str, TensorView] = {}
    size = 0
    for name, dtype, shape, data in tensors:
        tensor = view(name, dtype, shape, data)
        if shard and size + tensor.data.nbytes > max_bytes:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor
        size += tensor.data.nbytes
    if shard:
        yield shard
