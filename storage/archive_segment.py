"""A segment: a stretch of the log as one object.

Layout: one zstd frame (with its own checksum) around the records, one after the other, each a little-endian uint32
length and a MessagePack array `[position, subject, bytes]`. `bytes` are the event exactly as the log holds it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import msgspec
import zstandard

from schemas.errors import ArchiveDamaged
from storage.log import Recorded

_LENGTH = struct.Struct("<I")
_LEVEL = 3


class SegmentRecord(msgspec.Struct, frozen=True, array_like=True):
    """One event as it lies in a segment."""

    position: int
    subject: str
    data: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SegmentRecord)


def frame(recorded: Recorded) -> bytes:
    """The framed record of one event, uncompressed."""
    record = _encoder.encode(SegmentRecord(recorded.position, recorded.subject, recorded.data))
    return _LENGTH.pack(len(record)) + record


def pack_segment(frames: Iterable[bytes]) -> bytes:
    """The segment's bytes, from framed records. The same records give the same bytes."""
    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(b"".join(frames))


def unpack_segment(data: bytes) -> Iterator[SegmentRecord]:
    """The records in order. Raises ArchiveDamaged (without saying which segment: the caller knows)."""
    try:
        raw = memoryview(zstandard.ZstdDecompressor().decompress(data))
        offset = 0
        while offset < len(raw):
            (size,) = _LENGTH.unpack_from(raw, offset)
            offset += _LENGTH.size
            record = raw[offset : offset + size]
            if len(record) != size:
                raise ArchiveDamaged(f"the record at byte {offset} ends early")
            yield _decoder.decode(record)
            offset += size
    except (zstandard.ZstdError, struct.error, msgspec.DecodeError) as error:
        raise ArchiveDamaged(f"not a segment: {error}") from error
