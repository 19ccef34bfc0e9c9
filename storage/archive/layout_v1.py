"""Layout 1 of segments, in which archives were written before: one zstd frame around the records, one after the other,
each a little-endian uint32 length and a MessagePack array `[position, subject, bytes]`.

Nothing new is written in it, but a damaged segment is made again as it was.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import msgspec

from schemas.errors import ArchiveDamaged
from storage.archive.segment import Segment, SegmentRecord, compress, decompress, pack_raw

_LENGTH = struct.Struct("<I")

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SegmentRecord)


def pack_segment(records: Sequence[SegmentRecord]) -> bytes:
    """As storage/archive/segment.py does."""
    encoded = map(_encoder.encode, records)
    return compress(b"".join(part for record in encoded for part in (_LENGTH.pack(len(record)), record)))


def unpack_segment(first: int, data: bytes) -> Segment:
    """As storage/archive/segment.py does. Every record has its position, which must be the one it stands at."""
    records = list(_records(decompress(data)))
    for position, record in enumerate(records, first):
        if record.position != position:
            raise ArchiveDamaged(f"position {record.position} stands where {position} should")
    return Segment(first, pack_raw(records))


def _records(raw: bytes) -> Iterator[SegmentRecord]:
    view, offset = memoryview(raw), 0
    try:
        while offset < len(raw):
            (size,) = _LENGTH.unpack_from(raw, offset)
            offset += _LENGTH.size
            record = view[offset : offset + size]
            if len(record) != size:
                raise ArchiveDamaged(f"the record at byte {offset} ends early")
            yield _decoder.decode(record)
            offset += size
    except (struct.error, msgspec.DecodeError) as error:
        raise ArchiveDamaged(f"not a segment: {error}") from error
