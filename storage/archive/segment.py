"""A segment: consecutive events of the log as one object, and its layouts.

Layout 2: one zstd frame (with its own checksum) around a MessagePack array `[sizes, subjects, events]`. `events` are
the bytes of all events, exactly as the log holds them, one after the other; `sizes`: how many bytes each has
(little-endian uint32); `subjects`: the subject of each. Their positions follow from the manifest's first. So a
reader of many does nothing for each.

Layout 1, in which archives were written before: one zstd frame around the records, one after the other, each a
little-endian uint32 length and a MessagePack array `[position, subject, bytes]`. Nothing new is written in it, but a
damaged segment is made again as it was.
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
"""Bytes of the heads of a record's fields at most, in either layout; a manifest counts what is in the fields."""
_SEGMENT_HEADS = 64
_SMALL, _RATIO = 64 << 20, 1000
"""A segment is no larger than so many bytes, and so many for each stored one: no log of ours is packed more tightly."""


class SegmentRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One event as it lies in a segment."""

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
    """Events from position `first` on, uncompressed. The n-th, counted from 0, is at position `first + n`.

    raw: a segment before compression. Raises ArchiveDamaged.
    """

    def __init__(self, first: int, raw: bytes) -> None:
        self.first, self._raw = first, raw
        try:
            packed = _decoder.decode(raw)
            self._ends = np.cumsum(np.frombuffer(packed.sizes, "<u4"), dtype=np.int64)
        except _UNREADABLE as error:
            raise ArchiveDamaged(f"not a segment: {error}") from error
        self._subjects, self._base = packed.subjects, len(raw) - len(packed.events)  # they are the last part
        if self._start(len(self)) != len(raw):
            raise ArchiveDamaged(f"not a segment: it has {len(packed.events)} bytes of events and says otherwise")

    def __len__(self) -> int:
        return len(self._ends)

    @functools.cached_property
    def subjects(self) -> list[str]:
        """The subject of each event. Raises ArchiveDamaged."""
        try:
            subjects = _subjects.decode(self._subjects)
        except _UNREADABLE as error:
            raise ArchiveDamaged(f"not a segment: {error}") from error
        if len(subjects) != len(self):
            raise ArchiveDamaged(f"not a segment: it has {len(self)} events and {len(subjects)} subjects")
        return subjects

    def records(self, begin: int = 0) -> Iterator[SegmentRecord]:
        """From the `begin`-th on. Raises ArchiveDamaged."""
        return map(SegmentRecord, itertools.count(self.first + begin), self.subjects[begin:], self.datas(begin))

    def record(self, number: int) -> SegmentRecord:
        """The `number`-th. Raises ArchiveDamaged."""
        data = self._raw[self._start(number) : self._start(number + 1)]
        return SegmentRecord(self.first + number, self.subjects[number], data)

    def datas(self, begin: int, end: int | None = None) -> Iterator[bytes]:
        """The bytes of each event from the `begin`-th up to the one before the `end`-th."""
        raw, start = self._raw, self._start(begin)
        for stop in (self._ends[begin:end] + self._base).tolist():
            yield raw[start:stop]
            start = stop

    def arrays(self, begin: int, end: int) -> Iterator[bytes]:
        """The same, as MessagePack arrays of `MANY` events."""
        view = memoryview(self._raw)
        for first, last in itertools.pairwise([*range(begin, end, MANY), end]):
            yield array_of(last - first, view[self._start(first) : self._start(last)])

    def _start(self, number: int) -> int:
        return self._base + (int(self._ends[number - 1]) if number else 0)


def pack_raw(records: Sequence[SegmentRecord]) -> bytes:
    """A segment before compression."""
    sizes = np.array([len(record.data) for record in records], "<u4").tobytes()
    subjects = msgspec.Raw(_encoder.encode([record.subject for record in records]))
    return _encoder.encode(_Packed(sizes, subjects, memoryview(b"".join(record.data for record in records))))


def pack(layout: int, records: Sequence[SegmentRecord]) -> bytes:
    """A segment's bytes. The same records give the same bytes."""
    if layout != 1:
        return compress(pack_raw(records))
    encoded = map(_encoder.encode, records)
    return compress(b"".join(part for record in encoded for part in (_LENGTH.pack(len(record)), record)))


def unpack(manifest: SegmentManifest, data: bytes) -> Segment:
    """The events in the object. Raises ArchiveDamaged (without saying which segment: the caller knows)."""
    raw = decompress(data, _allowed(manifest, len(data)))
    unpacked = _from_v1(manifest.first, raw) if manifest.layout == 1 else Segment(manifest.first, raw)
    if len(unpacked) != manifest.count:
        raise ArchiveDamaged(f"it ends at position {manifest.first + len(unpacked) - 1}")
    return unpacked


def _allowed(manifest: SegmentManifest, stored: int) -> int:
    """Bytes that a segment may have uncompressed. A manifest counts characters of subjects: up to 4 bytes each."""
    by_manifest = 4 * manifest.raw_bytes + manifest.count * _RECORD_HEADS + _SEGMENT_HEADS
    return min(by_manifest if manifest.raw_bytes else FRAME_LIMIT, _SMALL + stored * _RATIO)


def _from_v1(first: int, raw: bytes) -> Segment:
    records = list(_records(raw))
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
            yield _record.decode(record)
            offset += size
    except (struct.error, msgspec.DecodeError) as error:
        raise ArchiveDamaged(f"not a segment: {error}") from error


def compress(raw: bytes) -> bytes:
    """One zstd frame, with its checksum."""
    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(raw)


def decompress(data: bytes, limit: int = FRAME_LIMIT) -> bytes:
    """Return what is in it. Raises ArchiveDamaged, also for more than `limit` bytes."""
    try:
        return decompress_frame(data, limit)
    except ValueError as error:
        raise ArchiveDamaged(f"not a segment: {error}") from error


def raw_bytes(record: SegmentRecord) -> int:
    """Of a record before compression, but for the heads of its fields."""
    return len(record.data) + len(record.subject) + 4
