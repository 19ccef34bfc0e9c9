"""`locate_tensor`: where a file that torch.save wrote has a tensor's elements, found without torch.

torch.save writes a zip archive of uncompressed records: `data.pkl`, a pickle of dtype, shape and strides, and `data/0`,
the elements. The pickle is read with inert records for all classes, so that a file from elsewhere runs nothing.
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from pathlib import Path
from typing import IO, Annotated, Any, NamedTuple

from schemas.doc import doc
from schemas.errors import CheckpointMismatch

STORAGES = {
    "DoubleStorage": "float64",
    "LongStorage": "int64",
    "FloatStorage": "float32",
    "IntStorage": "int32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}
"""torch's classes of storages, with the dtype of each."""
ITEM_BYTES = {
    **dict.fromkeys(("float64", "int64"), 8),
    **dict.fromkeys(("float32", "int32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16"), 2),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "int8", "uint8", "bool"), 1),
}
"""Bytes of an element, by torch's name of the dtype."""
PICKLE_BYTES = 65536
"""Most bytes of the pickle of one tensor, which has about 150."""
LOCAL_HEADER = 30
"""Bytes before the name of a record in a zip archive."""


class SavedTensor(NamedTuple):
    """A tensor in a file."""

    dtype: Annotated[str, doc("torch's name of the dtype.")]
    shape: tuple[int, ...]
    strides: Annotated[tuple[int, ...], doc("In elements.")]
    start: Annotated[int, doc("Position of the first element in the file.")]


class _Storage(NamedTuple):
    key: str
    dtype: str


class _Pickled(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


def locate_tensor(path: Path, start: int, length: int) -> SavedTensor:
    """Find the tensor that torch.save wrote at `start` of a file, in `length` bytes. Raises CheckpointMismatch."""
    try:
        with path.open("rb", buffering=0) as file:
            return _locate(file, start, length)
    except Exception as error:  # a damaged file may raise anything
        raise CheckpointMismatch(f"{path} cannot be read: {error}; restore it from a copy") from error


def _locate(file: IO[bytes], start: int, length: int) -> SavedTensor:
    with zipfile.ZipFile(io.BufferedReader(_Section(file, start, length))) as archive:
        records = {info.filename.partition("/")[2]: info for info in archive.infolist()}
    info = records["data.pkl"]
    if info.file_size > PICKLE_BYTES:
        raise ValueError(f"its pickle has {info.file_size} bytes")
    pickled = _Unpickler(io.BytesIO(_record(file, start, info))).load()
    if not isinstance(pickled, _Pickled):
        raise ValueError(f"no tensor is at {start}")
    if "byteorder" in records and _record(file, start, records["byteorder"]) != b"little":
        raise ValueError(f"the tensor at {start} is not little-endian")
    info, item = records[f"data/{pickled.storage.key}"], ITEM_BYTES[pickled.dtype]
    if len(pickled.shape) != len(pickled.strides) or min((pickled.offset, *pickled.shape, *pickled.strides)) < 0:
        raise ValueError(f"the tensor at {start} has an impossible shape")
    last = pickled.offset + sum((size - 1) * step for size, step in zip(pickled.shape, pickled.strides, strict=True))
    first = _data_start(file, start, info)
    if math.prod(pickled.shape) and ((last + 1) * item > info.file_size or first + info.file_size > start + length):
        raise ValueError(f"the tensor at {start} is larger than its bytes")
    return SavedTensor(pickled.dtype, pickled.shape, pickled.strides, first + pickled.offset * item)


def _data_start(file: IO[bytes], start: int, info: zipfile.ZipInfo) -> int:
    file.seek(start + info.header_offset)
    header = file.read(LOCAL_HEADER)
    if len(header) != LOCAL_HEADER or header[:4] != b"PK\x03\x04" or info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{info.filename} at {start} is no uncompressed record")
    return file.tell() + sum(int.from_bytes(header[at : at + 2], "little") for at in (26, 28))


def _record(file: IO[bytes], start: int, info: zipfile.ZipInfo) -> bytes:
    file.seek(_data_start(file, start, info))
    return file.read(info.file_size)


class _Section(io.RawIOBase):
    """A part of a file as a file."""

    def __init__(self, file: IO[bytes], start: int, length: int) -> None:
        self._file, self._start, self._length, self._at = file, start, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        if base + offset < 0:
            raise OSError(f"position {base + offset} is before the beginning")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, memory: Any) -> int:
        self._file.seek(self._start + self._at)
        data = self._file.read(max(0, min(len(memory), self._length - self._at)))
        memory[: len(data)] = data
        self._at += len(data)
        return len(data)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _pickled
        if (module, name) == ("torch._utils", "_rebuild_tensor_v3"):
            return _pickled_with_dtype
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        if (module, name) == ("torch.storage", "UntypedStorage"):
            return ""
        if module == "torch" and (name in STORAGES or name in ITEM_BYTES):
            return STORAGES.get(name, name)
        raise pickle.UnpicklingError(f"its pickle names {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        _, dtype, key, _, _ = pid
        return _Storage(key, dtype)


def _pickled(storage: _Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: object) -> _Pickled:
    return _Pickled(storage, offset, tuple(shape), tuple(strides), storage.dtype)


def _pickled_with_dtype(
    storage: _Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *rest: Any
) -> _Pickled:
    return _pickled(storage, offset, shape, strides)._replace(dtype=rest[2])
