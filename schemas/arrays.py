"""`Array`: numbers as raw little-endian bytes, inline or in the blob store.

At 32k tokens this is 11 us to encode and 6 us to decode, against milliseconds through lists.
Numpy is imported with the first numbers: a process that grades texts has none, and would start half as fast again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from schemas.errors import BlobMissing, DamagedEvent

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

INLINE_LIMIT = 256 * 1024
"""Bytes above which an array goes to the blob store first and the event carries a `BlobRef`."""

DType = Literal["int32", "float32", "int8"]


class BlobRef(msgspec.Struct, frozen=True, gc=False):
    """A payload in the blob store, named by what it is. sha256: hex; size: bytes."""

    sha256: str
    size: int


class Array(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A one-dimensional array of `n` numbers: in `data`, or in the blob that `blob` names."""

    dtype: DType
    n: int
    data: bytes = b""
    blob: BlobRef | None = None

    def digest(self) -> str:
        """sha256 of the numbers' bytes, wherever they lie; hex."""
        return hashlib.sha256(self.data).hexdigest() if self.blob is None else self.blob.sha256


EMPTY_TOKENS = Array(dtype="int32", n=0)
EMPTY_LOG_PROBS = Array(dtype="float32", n=0)
EMPTY_BYTES = Array(dtype="int8", n=0)


@cache
def _little_endian(dtype: DType) -> np.dtype[Any]:
    import numpy as np

    return np.dtype(dtype).newbyteorder("<")


def pack(values: Sequence[int] | Sequence[float] | npt.NDArray[Any], dtype: DType) -> Array:
    """Numbers to an inline array."""
    import numpy as np

    array = np.ascontiguousarray(values, dtype=_little_endian(dtype))
    return Array(dtype=dtype, n=int(array.size), data=array.tobytes())


def pack_tokens(values: Sequence[int] | npt.NDArray[Any]) -> Array:
    """Token ids, int32."""
    return pack(values, "int32")


def pack_log_probs(values: Sequence[float] | npt.NDArray[Any]) -> Array:
    """Natural log-probabilities, float32."""
    return pack(values, "float32")


def unpack(array: Array, payload: bytes | None = None) -> npt.NDArray[Any]:
    """The numbers, read-only. `payload` is the blob's content where the array is not inline.

    Raises BlobMissing where a blob is needed and not given, DamagedEvent where the length is not `n` numbers.
    """
    data = array.data
    if array.blob is not None:
        if payload is None:
            raise BlobMissing(f"array of {array.n} {array.dtype} lies in blob {array.blob.sha256}: fetch it first")
        data = payload
    import numpy as np

    kind = _little_endian(array.dtype)
    if len(data) != array.n * kind.itemsize:
        raise DamagedEvent(f"array says {array.n} x {array.dtype} but holds {len(data)} bytes")
    return np.frombuffer(data, dtype=kind)
