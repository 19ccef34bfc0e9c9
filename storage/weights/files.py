"""Read and write Hugging Face weight folders as plain bytes, without torch, for any dtype, without copies.

The safetensors format: 8 bytes little-endian length of a JSON header, the header `{name: {dtype, shape,
data_offsets}}`, then the tensors' bytes, concatenated (https://github.com/huggingface/safetensors).
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec

from schemas.doc import doc
from schemas.errors import CheckpointMismatch, WeightsDamaged
from schemas.outside_json import read_json
from storage.digests import TensorDigest, digest_soon

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined]  # a typing-only name before Python 3.12

ITEM_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "I8", "U8", "BOOL"), 1),
}
"""Bytes of one element, by safetensors' dtype name."""

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PYTORCH: Mapping[str, str] = {"format": "pt"}
"""Metadata of a file of a model's tensors, without which `transformers` refuses it."""
_METADATA = "__metadata__"
_HEADER_LIMIT = 100_000_000


class TensorView(NamedTuple):
    """A tensor's bytes in memory or in a mapped file."""

    dtype: Annotated[str, doc("safetensors' name of the dtype.")]
    shape: tuple[int, ...]
    data: Annotated[memoryview, doc("Flat bytes, little-endian, row-major.")]


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


class _DeltaMetadata(msgspec.Struct, frozen=True):
    delta_encoding: str


class _DeltaIndex(msgspec.Struct, frozen=True):
    metadata: _DeltaMetadata


def view(name: str, dtype: str, shape: Iterable[int], data: Buffer) -> TensorView:
    """Return a tensor from contiguous bytes. Raises CheckpointMismatch if they do not fit dtype and shape."""
    if dtype not in ITEM_BYTES:
        raise CheckpointMismatch(f"tensor {name!r} has dtype {dtype!r}: use one of {', '.join(ITEM_BYTES)}")
    sizes, flat = tuple(shape), memoryview(data)
    flat = flat.cast("B") if flat.nbytes else memoryview(b"")
    if flat.nbytes != math.prod(sizes) * ITEM_BYTES[dtype]:
        raise CheckpointMismatch(f"tensor {name!r} has {flat.nbytes} bytes, which is not {dtype} {list(sizes)}")
    return TensorView(dtype, sizes, flat)


def write_shard(
    path: Path, tensors: Mapping[str, TensorView], *, durable: bool, metadata: Mapping[str, str] = PYTORCH
) -> dict[str, TensorDigest]:
    """Write one safetensors file, and return its tensors' digests, computed meanwhile."""
    digests = {name: digest_soon(*tensor) for name, tensor in tensors.items()}
    # Wide elements first, so that every tensor is aligned for its dtype.
    order = sorted(tensors, key=lambda name: (-ITEM_BYTES[tensors[name].dtype], name))
    with path.open("xb", buffering=0) as file:
        _write_all(file.fileno(), [_header(tensors, order, metadata), *(tensors[name].data for name in order)])
        if durable:
            os.fsync(file.fileno())
    return {name: digest.result() for name, digest in digests.items()}


def open_checkpoint(folder: str | Path) -> dict[str, TensorView]:
    """Return all tensors of an HF folder by name, read-only and memory-mapped.

    Raises WeightsDamaged if the folder has no safetensors, or a file is malformed or truncated, and CheckpointMismatch
    for a version that is stored as a delta (storage/weights/delta_version.py).
    """
    root = Path(folder)
    if (root / INDEX).is_file():
        try:
            weight_map = read_json((root / INDEX).read_bytes(), _Index).weight_map
        except msgspec.DecodeError as error:
            raise WeightsDamaged(f"{root / INDEX} is damaged ({error}): restore it from a copy") from error
        if is_delta(root):
            raise CheckpointMismatch(
                f"{root} has only the changes from another weight version: `slime-events export RUN --to weights "
                "--version N` writes a whole one"
            )
        if outside := [file for file in weight_map.values() if not is_name(file)]:
            raise WeightsDamaged(f"{root / INDEX} names {outside[0]!r}, which is not a file of its folder")
        files = {file: dict(open_shard(root / file)) for file in sorted(set(weight_map.values()))}
        for name, file in weight_map.items():
            if name not in files[file]:
                raise WeightsDamaged(f"tensor {name!r} is missing in {root / file}: restore it from a copy")
        return {name: files[file][name] for name, file in weight_map.items()}
    shards = [root / SINGLE] if (root / SINGLE).is_file() else sorted(root.glob("*.safetensors"))
    if not shards:
        raise WeightsDamaged(f"{root} has no safetensors files: give a Hugging Face checkpoint folder")
    return {name: tensor for shard in shards for name, tensor in open_shard(shard)}


def is_delta(folder: Path) -> bool:
    """Return whether a folder has a weight version that is stored as a delta (storage/weights/delta_version.py)."""
    try:
        read_json((folder / INDEX).read_bytes(), _DeltaIndex)
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return False
    return True


def is_name(file: str) -> bool:
    """Return whether `file` is a plain file name. An index or a manifest may be malicious."""
    return Path(file).name == file and file not in ("", "..") and "\0" not in file


def open_shard(path: Path) -> Iterator[tuple[str, TensorView]]:
    """Yield the tensors of one safetensors file."""
    whole = _mapped(path)
    entries, start, _ = _read_header(path, whole)
    for name, entry in entries.items():
        begin, end = entry.data_offsets
        needed = math.prod(entry.shape) * ITEM_BYTES.get(entry.dtype, 0)
        if entry.dtype not in ITEM_BYTES or begin < 0 or end - begin != needed:
            raise WeightsDamaged(f"{path}: the header's entry of tensor {name!r} is invalid: {entry}")
        if start + end > len(whole):
            raise WeightsDamaged(f"{path} ends within tensor {name!r}: it was cut short, restore it from a copy")
        yield name, TensorView(entry.dtype, entry.shape, whole[start + begin : start + end])


def shard_metadata(path: Path) -> dict[str, str]:
    """Return the texts in the header of a safetensors file. Raises WeightsDamaged."""
    metadata = _read_header(path, _mapped(path))[2]
    try:
        return read_json(metadata, dict[str, str])
    except msgspec.DecodeError as error:
        raise WeightsDamaged(f"{path} has damaged metadata ({error}): restore it from a copy") from error


def _mapped(path: Path) -> memoryview:
    try:
        with path.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError:
        raise WeightsDamaged(f"{path} is missing: restore it from a copy") from None
    except ValueError:  # an empty file cannot be mapped
        return memoryview(b"")


def _read_header(path: Path, whole: memoryview) -> tuple[dict[str, _Entry], int, msgspec.Raw]:
    size = int.from_bytes(whole[:8], "little")
    start = 8 + size
    if len(whole) < 8 or size > _HEADER_LIMIT or start > len(whole):
        raise WeightsDamaged(f"{path} is not a safetensors file, or was cut short within its header")
    try:
        raw = read_json(bytes(whole[8:start]), dict[str, msgspec.Raw])
        metadata = raw.pop(_METADATA, msgspec.Raw(b"{}"))
        return {name: read_json(entry, _Entry) for name, entry in raw.items()}, start, metadata
    except msgspec.DecodeError as error:
        raise WeightsDamaged(f"{path} has a damaged header ({error}): restore it from a copy") from error


def _header(tensors: Mapping[str, TensorView], order: Sequence[str], metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, object] = {_METADATA: metadata}
    offset = 0
    for name in order:
        dtype, shape, data = tensors[name]
        entries[name] = _Entry(dtype, shape, (offset, offset + data.nbytes))
        offset += data.nbytes
    header = msgspec.json.encode(entries)
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header


def _write_all(descriptor: int, parts: Sequence[bytes | memoryview]) -> None:
    rest = [memoryview(part) for part in parts if len(part)]
    while rest:
        written = os.writev(descriptor, rest[:1000])
        while rest and written >= len(rest[0]):
            written -= len(rest.pop(0))
        if written:
            rest[0] = rest[0][written:]
