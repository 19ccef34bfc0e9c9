"""`Array`: numbers as raw little-endian bytes, inline or in the blob store.

At 32k tokens this takes 11 us to encode and 6 us to decode; lists take milliseconds.
NumPy is imported at its first use: a process that grades texts never needs it, and starts faster without it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from schemas.doc import doc
from schemas.errors import BlobMissing, DamagedEvent

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

INLINE_LIMIT = 256 * 1024
"""Bytes above which an array goes to the blob store first and the event carries a `BlobRef`."""

DType = Literal["int32", "float32", "int8", "uint8", "uint16"]


class BlobRef(msgspec.Struct, frozen=True, gc=False):
    """A payload in the blob store, named by its content."""

    sha256: Annotated[str, doc("sha256 (hex) of the payload.")]
    size: Annotated[int, doc("Size of the payload, in bytes.")]


class Array(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A one-dimensional array, stored in `data` or in a blob."""

    dtype: Annotated[DType, doc("Type of the numbers; little-endian.")]
    n: Annotated[int, doc("Number of elements.")]
    data: Annotated[bytes, doc("Bytes of the numbers; empty if they are in a blob.")] = b""
    blob: Annotated[BlobRef | None, doc("Blob that holds the numbers; None if they are in `data`.")] = None

    def digest(self) -> str:
        """Return the sha256 (hex) of the numbers' bytes, inline or in a blob."""
        return hashlib.sha256(self.data).hexdigest() if self.blob is None else self.blob.sha256


EMPTY_TOKENS = Array(dtype="int32", n=0)
EMPTY_LOG_PROBS = Array(dtype="float32", n=0)
EMPTY_BYTES = Array(dtype="int8", n=0)


@cache
def _little_endian(dtype: DType) -> np.dtype[Any]:
    import numpy as np

    return np.dtype(dtype).newbyteorder("<")


def pack(values: Sequence[int] | Sequence[float] | npt.NDArray[Any], dtype: DType) -> Array:
    """Return an inline array of `values`."""
    import numpy as np

    array = np.ascontiguousarray(values, dtype=_little_endian(dtype))
    return Array(dtype=dtype, n=int(array.size), data=array.tobytes())


def pack_tokens(values: Sequence[int] | npt.NDArray[Any]) -> Array:
    """Return token ids as an int32 array."""
    return pack(values, "int32")


def pack_log_probs(values: Sequence[float] | npt.NDArray[Any]) -> Array:
    """Return natural log-probabilities as a float32 array."""
    return pack(values, "float32")


def unpack(array: Array, payload: bytes | None = None) -> npt.NDArray[Any]:
    """Return the numbers, read-only. `payload` is the blob's content if the array is not inline.

    Raises BlobMissing if `payload` is needed and missing, DamagedEvent if the length does not fit `n`.
    """
    data = array.data
    if array.blob is not None:
        if payload is None:
            raise BlobMissing(f"array of {array.n} {array.dtype} is in blob {array.blob.sha256}: fetch it first")
        data = payload
    import numpy as np

    kind = _little_endian(array.dtype)
    if len(data) != array.n * kind.itemsize:
        raise DamagedEvent(f"array of {array.n} x {array.dtype} has {len(data)} bytes")
    return np.frombuffer(data, dtype=kind)
