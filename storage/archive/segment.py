"""A segment: a stretch of the log as one object.

Layout 2: one zstd frame (with its own checksum) around a MessagePack array `[sizes, subjects, events]`. `events` are
the bytes of all events, exactly as the log holds them, one after the other; `sizes`: how many bytes each has
(little-endian uint32); `subjects`: what each is said under. Their positions follow from the manifest's first. So who
reads many at once has nothing to do for each. What was written before is in layout 1 (storage/archive/layout_v1.py).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import zstandard

from schemas.errors import ArchiveDamaged
from storage.event_block import MANY, array_of

_LEVEL = 3


class SegmentRecord(msgspec.Struct, frozen=True, array_like=True):
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
        """What each event is said under. Raises ArchiveDamaged."""
        try:
            subjects = _subjects.decode(self._subjects)
        except _UNREADABLE as error:
            raise ArchiveDamaged(f"not a segment: {error}") from error
        if len(subjects) != len(self):
            raise ArchiveDamaged(f"not a segment: it has {len(self)} events and {len(subjects)} subjects")
        return subjects

    def records(self, begin: int = 0) -> Iterator[SegmentRecord]:
        """From the `begin`-th on. Raises ArchiveDamaged."""
        for number, (subject, data) in enumerate(zip(self.subjects[begin:], self.datas(begin), strict=True), begin):
            yield SegmentRecord(self.first + number, subject, data)

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


def pack_segment(records: Sequence[SegmentRecord]) -> bytes:
    """The segment's bytes. The same records give the same bytes."""
    return compress(pack_raw(records))


def unpack_segment(first: int, data: bytes) -> Segment:
    """Raises ArchiveDamaged (without saying which segment: the caller knows)."""
    return Segment(first, decompress(data))


def compress(raw: bytes) -> bytes:
    """One zstd frame, with its checksum."""
    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(raw)


def decompress(data: bytes) -> bytes:
    """What is in it. Raises ArchiveDamaged."""
    try:
        return bytes(zstandard.ZstdDecompressor().decompress(data))
    except zstandard.ZstdError as error:
        raise ArchiveDamaged(f"not a segment: {error}") from error


def raw_bytes(record: SegmentRecord) -> int:
    """Of a record before compression, but for the heads of its fields."""
    return len(record.data) + len(record.subject) + 4
