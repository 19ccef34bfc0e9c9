"""`write_shards`: write tensors as safetensors files of an incomplete version.

Several processes may write concurrently, each its own tensors under its own prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

from schemas.doc import doc
from storage.digests import TensorDigest
from storage.object_store import file_errors
from storage.weights.files import TensorView, view, write_shard

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
    changed: Annotated[
        tuple[str, ...] | None, doc("Of a delta: the tensors that have a frame in the file; without any: no file.")
    ] = None


def write_shards(
    folder: Path,
    prefix: str,
    tensors: Iterable[TensorBytes],
    *,
    max_bytes: int = SHARD_BYTES,
    durable: bool = True,
) -> list[Shard]:
    """Write tensors into the folder, one at a time. durable: fsync before returning.

    Raises NoSpace, StoreUnavailable, and CheckpointMismatch for a tensor whose bytes do not fit its dtype and shape.
    """
    written: list[Shard] = []
    with file_errors(str(folder)):
        for shard in split(tensors, max_bytes):
            name = f"{prefix}-{len(written)}"
            written.append(Shard(name, write_shard(folder / name, shard, durable=durable)))
            del shard  # or it would be held until the next one is whole
    return written


def split(tensors: Iterable[TensorBytes], max_bytes: int) -> Iterator[dict[str, TensorView]]:
    """Yield the tensors of each file."""
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
