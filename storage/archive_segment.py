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


class _Named(msgspec.Struct, frozen=True, array_like=True):
    """A record without its bytes, which are passed over."""

    position: int
    subject: str


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SegmentRecord)
_names = msgspec.msgpack.Decoder(_Named)


def frame(recorded: Recorded) -> bytes:
    """The framed record of one event, uncompressed."""
    record = _encoder.encode(SegmentRecord(recorded.position, recorded.subject, recorded.data))
    return _LENGTH.pack(len(record)) + record


def pack_segment(frames: Iterable[bytes]) -> bytes:
    """The segment's bytes, from framed records. The same records give the same bytes."""
    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(b"".join(frames))


def unpack_segment(data: bytes) -> Iterator[SegmentRecord]:
    """The records in order. Raises ArchiveDamaged (without saying which segment: the caller knows)."""
    raw, offset = memoryview(unpack_raw(data)), 0
    try:
        while offset < len(raw):
            (size,) = _LENGTH.unpack_from(raw, offset)
            offset += _LENGTH.size
            record = raw[offset : offset + size]
            if len(record) != size:
                raise ArchiveDamaged(f"the record at byte {offset} ends early")
            yield _decoder.decode(record)
            offset += size
    except (struct.error, msgspec.DecodeError) as error:
        raise ArchiveDamaged(f"not a segment: {error}") from error


def unpack_raw(data: bytes) -> bytes:
    """The records as they lie behind each other, uncompressed. Raises ArchiveDamaged."""
    try:
        return bytes(zstandard.ZstdDecompressor().decompress(data))
    except zstandard.ZstdError as error:
        raise ArchiveDamaged(f"not a segment: {error}") from error


def subjects_in(raw: bytes) -> Iterator[tuple[int, str]]:
    """Of each uncompressed record the byte that it begins at and its subject. Raises ArchiveDamaged."""
    view, offset, unpack, decode = memoryview(raw), 0, _LENGTH.unpack_from, _names.decode
    try:
        while offset < len(raw):
            (size,) = unpack(raw, offset)
            yield offset, decode(view[offset + 4 : offset + 4 + size]).subject
            offset += 4 + size
    except (struct.error, msgspec.DecodeError) as error:
        raise ArchiveDamaged(f"not a record at byte {offset}: {error}") from error


def record_at(raw: bytes, place: int) -> SegmentRecord:
    """The uncompressed record that begins at byte `place`. Raises ArchiveDamaged."""
    try:
        (size,) = _LENGTH.unpack_from(raw, place)
        return _decoder.decode(memoryview(raw)[place + _LENGTH.size : place + _LENGTH.size + size])
    except (struct.error, msgspec.DecodeError) as error:
        raise ArchiveDamaged(f"not a record at byte {place}: {error}") from error
