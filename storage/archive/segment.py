"""A segment: consecutive events of the log as one object, and its layouts.

Layout 2: one zstd frame (with a checksum) around a MessagePack array `[sizes, subjects, events]`. `events` is the
concatenation of all events' bytes as in the log, `sizes` the number of bytes of each (little-endian uint32), `subjects`
the subject of each. The manifest has the first position, so a reader of many events needs no work per event.

Layout 1, of older archives: one zstd frame around the concatenated records, each a little-endian uint32 length and a
MessagePack array `[position, subject, bytes]`. New segments do not use it, but a damaged one is repaired in it.
"""

import functools
import itertools
import struct
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import zstandard

from schemas.errors import ArchiveDamaged
from storage.archive.manifest import SegmentManifest
from storage.compression import FRAME_LIMIT
from storage.compression import decompress as decompress_frame
from storage.event_block import MANY, array_of

_LEVEL = 3
_LENGTH = struct.Struct("<I")
_RECORD_HEADS = 32
"""Most bytes of MessagePack heads per record in either layout; a manifest counts the fields' content only."""
_SEGMENT_HEADS = 64
_SMALL, _RATIO = 64 << 20, 1000
"""A segment may have `_SMALL` bytes uncompressed, and `_RATIO` bytes more per stored byte: no log compresses better."""


class SegmentRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One event in a segment."""

    position: int
    subject: str
    data: bytes


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    sizes: bytes
    subjects: msgspec.Raw
    events: memoryview


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Packed)
_record = msgspec.msgpack.Decoder(SegmentRecord)
_subjects = msgspec.msgpack.Decoder(list[str])
_UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)


class Segment:
    """Uncompressed events. Number n, from 0, is at position `first + n`.

    raw: the decompressed segment. Raises ArchiveDamaged.
    """

    def __init__(self, first: int, raw: bytes) -> None:
        self.first, self._raw = first, raw
        try:
            packed = _decoder.decode(raw)
            self._ends = np.cumsum(np.frombuffer(packed.sizes, "<u4"), dtype=np.int64)
        except _UNREADABLE as error:
            raise ArchiveDamaged(f"not a segment: {error}") from error
        self._subjects, self._base = packed.subjects, len(raw) - len(packed.events)  # events are the last part
        if self._start(len(self)) != len(raw):
            raise ArchiveDamaged(f"not a segment: its {len(packed.events)} bytes of events do not fit their sizes")

    def __len__(self) -> int:
        return len(self._ends)

    @functools.cached_property
    def subjects(self) -> list[str]:
        """Subject of each event. Raises ArchiveDamaged."""
        try:
            subjects = _subjects.decode(self._subjects)
        except _UNREADABLE as error:
            raise ArchiveDamaged(f"not a segment: {error}") from error
        if len(subjects) != len(self):
            raise ArchiveDamaged(f"not a segment: it has {len(self)} events and {len(subjects)} subjects")
        return subjects

    def records(self, begin: int = 0) -> Iterator[SegmentRecord]:
        """Yield the events from number `begin` on. Raises ArchiveDamaged."""
        return map(SegmentRecord, itertools.count(self.first + begin), self.subjects[begin:], self.datas(begin))

    def record(self, number: int) -> SegmentRecord:
        """Return an event by number. Raises ArchiveDamaged."""
        data = self._raw[self._start(number) : self._start(number + 1)]
        return SegmentRecord(self.first + number, self.subjects[number], data)

    def datas(self, begin: int, end: int | None = None) -> Iterator[bytes]:
        """Yield the bytes of the events [begin, end)."""
        raw, start = self._raw, self._start(begin)
        for stop in (self._ends[begin:end] + self._base).tolist():
            yield raw[start:stop]
            start = stop

    def arrays(self, begin: int, end: int) -> Iterator[bytes]:
        """Yield the events [begin, end) as MessagePack arrays of `MANY` events."""
        view = memoryview(self._raw)
        for first, last in itertools.pairwise([*range(begin, end, MANY), end]):
            yield array_of(last - first, view[self._start(first) : self._start(last)])

    def _start(self, number: int) -> int:
        return self._base + (int(self._ends[number - 1]) if number else 0)


def pack_raw(records: Sequence[SegmentRecord]) -> bytes:
    """Return a segment before compression."""
    sizes = np.array([len(record.data) for record in records], "<u4").tobytes()
    subjects = msgspec.Raw(_encoder.encode([record.subject for record in records]))
    return _encoder.encode(_Packed(sizes, subjects, memoryview(b"".join(record.data for record in records))))


def pack(layout: int, records: Sequence[SegmentRecord]) -> bytes:
    """Return a segment's bytes. Equal records give equal bytes."""
    if layout != 1:
        return compress(pack_raw(records))
    encoded = map(_encoder.encode, records)
    return compress(b"".join(part for record in encoded for part in (_LENGTH.pack(len(record)), record)))


def unpack(manifest: SegmentManifest, data: bytes) -> Segment:
    """Return the events of an object. Raises ArchiveDamaged; the caller adds the segment's name."""
    raw = decompress(data, _allowed(manifest, len(data)))
    unpacked = _from_v1(manifest.first, raw) if manifest.layout == 1 else Segment(manifest.first, raw)
    if len(unpacked) != manifest.count:
        raise ArchiveDamaged(f"it ends at position {manifest.first + len(unpacked) - 1}")
    return unpacked


def _allowed(manifest: SegmentManifest, stored: int) -> int:
    """Return the most uncompressed bytes of a segment. A manifest counts a subject's characters, of up to 4 bytes."""
    by_manifest = 4 * manifest.raw_bytes + manifest.count * _RECORD_HEADS + _SEGMENT_HEADS
    return min(by_manifest if manifest.raw_bytes else FRAME_LIMIT, _SMALL + stored * _RATIO)


def _from_v1(first: int, raw: bytes) -> Segment:
    records = list(_records(raw))
    for position, record in enumerate(records, first):
        if record.position != position:
            raise ArchiveDamaged(f"it has position {record.position} instead of {position}")
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
            yield _record.decode(record)
            offset += size
    except (struct.error, msgspec.DecodeError) as error:
        raise ArchiveDamaged(f"not a segment: {error}") from error


def compress(raw: bytes) -> bytes:
    """Return one zstd frame with a checksum."""
    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(raw)


def decompress(data: bytes, limit: int = FRAME_LIMIT) -> bytes:
    """Return the content of a frame. Raises ArchiveDamaged, also for more than `limit` bytes."""
    try:
        return decompress_frame(data, limit)
    except ValueError as error:
        raise ArchiveDamaged(f"not a segment: {error}") from error


def raw_bytes(record: SegmentRecord) -> int:
    """Return a record's bytes before compression, without MessagePack heads."""
    return len(record.data) + len(record.subject) + 4
