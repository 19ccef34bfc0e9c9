"""Deltas of tensors: what changed from a parent's bytes to new bytes, as one zstd frame for each tensor.

The two encodings are slime's (`--update-weight-delta-encoding`):

    xor        new XOR old, as many bytes as the tensor has; applied twice, it gives the old bytes again
    overwrite  the number of changed bytes, their positions (each a little-endian u4), then their new values

An unchanged tensor has no delta. A tensor that the parent lacks is encoded against zeros.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import xxhash
import zstandard

from schemas.errors import WeightsDamaged
from storage.weights.delta_rule import OVERWRITE_LIMIT, DeltaChecksum, DeltaEncoding

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined]  # a typing-only name before Python 3.12

COMPRESSION = "zstd"
"""The only compression, as slime's index names it."""
LEVEL = 1
BLOCK_BYTES = 128 * 1024
"""Bytes that are compared and compressed at a time: they stay in a core's cache."""
# Changed bytes are rare, and the zeros between them are long: a small window and hash table suffice. On a step of Adam
# the frame is a sixth smaller than by level 1 itself, and made a quarter faster.
_PARAMETERS = zstandard.ZstdCompressionParameters.from_level(
    LEVEL, min_match=6, hash_log=12, window_log=17, write_content_size=True
)
_Bytes = npt.NDArray[np.uint8]


_CHECKSUMS: Mapping[DeltaChecksum, Callable[[Buffer], str]] = {
    DeltaChecksum.XXH3: lambda data: xxhash.xxh3_128_hexdigest(data),
    DeltaChecksum.ADLER32: lambda data: f"{zlib.adler32(data):08x}",
}


def checksum(kind: DeltaChecksum, data: Buffer) -> str:
    """Return the checksum of a tensor's bytes, in hex."""
    return _CHECKSUMS[kind](data)


def encode(encoding: DeltaEncoding, old: memoryview | None, new: memoryview) -> bytes:
    """Return the delta from `old` to `new`, flat bytes of one size. old: None is zeros.

    Raises ValueError if the sizes differ, or if the encoding cannot express a tensor of this size.
    """
    if old is not None and old.nbytes != new.nbytes:
        raise ValueError(f"a delta joins tensors of one size, not of {old.nbytes:,} and {new.nbytes:,} bytes")
    if encoding is DeltaEncoding.OVERWRITE:
        return zstandard.ZstdCompressor(compression_params=_PARAMETERS).compress(_changes(old, new))
    return _compressed_xor(old, new)


def apply(encoding: DeltaEncoding, delta: memoryview, memory: bytearray) -> None:
    """Turn a copy of the old bytes into the new ones. Raises WeightsDamaged; `memory` is then of no use.

    A delta for other old bytes gives wrong bytes without an error: compare the checksum of the result.
    """
    try:
        if encoding is DeltaEncoding.OVERWRITE:
            _overwrite(delta, _flat(memory))
        else:
            _xor_into(delta, _flat(memory))
    except zstandard.ZstdError as error:
        raise WeightsDamaged(f"not a {COMPRESSION} frame: {error}") from error


def _flat(data: Buffer) -> _Bytes:
    return np.frombuffer(data, np.uint8)


def _compressed_xor(old: memoryview | None, new: memoryview) -> bytes:
    frame = zstandard.ZstdCompressor(compression_params=_PARAMETERS).compressobj(size=new.nbytes)
    after = _flat(new)
    before = None if old is None else _flat(old)
    block, parts = np.empty(min(BLOCK_BYTES, after.size), np.uint8), list[bytes]()
    for at in range(0, after.size, BLOCK_BYTES):
        piece = after[at : at + BLOCK_BYTES]
        if before is not None:
            piece = np.bitwise_xor(piece, before[at : at + BLOCK_BYTES], out=block[: piece.size])
        parts.append(frame.compress(piece.data))
    return b"".join((*parts, frame.flush()))


def _xor_into(delta: memoryview, memory: _Bytes) -> None:
    block, at = np.empty(min(BLOCK_BYTES, memory.size) or 1, np.uint8), 0
    with zstandard.ZstdDecompressor().stream_reader(delta) as frame:
        while count := frame.readinto(block.data):
            if at + count > memory.size:
                break
            piece = memory[at : at + count]
            np.bitwise_xor(piece, block[:count], out=piece)
            at += count
    if count or at != memory.size:
        raise WeightsDamaged(f"it has {'more' if count else f'{at:,}'} bytes, but the tensor has {memory.size:,}")


def _changes(old: memoryview | None, new: memoryview) -> bytes:
    if new.nbytes >= OVERWRITE_LIMIT:
        raise ValueError(f"an overwrite delta has positions below {OVERWRITE_LIMIT:,}, not {new.nbytes:,} bytes")
    after = _flat(new)
    positions = np.flatnonzero(after if old is None else after != _flat(old)).astype("<u4")
    return b"".join((np.array([positions.size], "<u4").tobytes(), positions.tobytes(), after[positions].tobytes()))


def _overwrite(delta: memoryview, memory: _Bytes) -> None:
    most = 4 + 5 * memory.size
    size = zstandard.frame_content_size(delta)
    if size > most:
        raise WeightsDamaged(f"it holds {size:,} bytes, but a delta of this tensor has at most {most:,}")
    content = zstandard.ZstdDecompressor().decompress(delta, max_output_size=most if size < 0 else 0)
    count = int.from_bytes(content[:4], "little")
    if len(content) != 4 + 5 * count:
        raise WeightsDamaged(f"it names {count:,} changed bytes, but holds {len(content):,} bytes")
    positions = np.frombuffer(content, "<u4", count, 4)
    if count and int(positions.max()) >= memory.size:
        raise WeightsDamaged(f"it changes byte {int(positions.max()):,}, but the tensor has {memory.size:,}")
    memory[positions] = np.frombuffer(content, np.uint8, count, 4 + 4 * count)
