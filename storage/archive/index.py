"""`ArchiveIndex`: find the events of a subject in an archive without reading all of it.

For each segment a table maps checksums of subjects to record numbers. A table is built when its segment is first used
and stored in a cache folder of the user, by the segment's sha256. The cache may be deleted at any time.
"""

import bisect
import os
import secrets
import zlib
from collections import OrderedDict
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storage.archive.manifest import SegmentManifest
from storage.archive.reader import ArchiveReader
from storage.archive.segment import Segment, SegmentRecord

FOLDER = Path("slime-events", "archive-index")
KEPT = 4
"""Segments cached in memory: events that are read together are often in one segment."""

WORTH_KEEPING = 1000
"""Fewest records of a segment whose table is stored: a smaller table is built as fast as it is read."""

_ENTRY = np.dtype([("key", "<u4"), ("number", "<u4")])


class ArchiveIndex:
    """Look-ups in the archive of `reader`. Raises as `ArchiveReader`. Without a writable folder no table is stored."""

    def __init__(self, reader: ArchiveReader, folder: Path | None = None) -> None:
        self._reader = reader
        self._folder = folder or cache_folder() / FOLDER
        self._tables: dict[int, npt.NDArray[np.void]] = {}
        self._segments: OrderedDict[int, Segment] = OrderedDict()

    @property
    def last(self) -> int:
        """Last archived position."""
        return self._reader.last

    def at(self, position: int) -> SegmentRecord:
        """Return the record at a position from 1 to `last`."""
        segments = self._reader.segments
        manifest = segments[bisect.bisect_left(segments, position, key=lambda manifest: manifest.last)]
        return self._segment(manifest).record(position - manifest.first)

    def last_of_each(self, subjects: Collection[str]) -> dict[str, SegmentRecord]:
        """Return the last record of each subject that has any, reading backwards from the end."""
        last: dict[str, SegmentRecord] = {}
        left = set(subjects)
        for manifest in reversed(self._reader.segments):
            if not left:
                break
            for record in self._within(manifest, left):
                last[record.subject] = record
            left -= last.keys()
        return last

    def of_subjects(self, subjects: Collection[str], start: int = 1) -> Iterator[SegmentRecord]:
        """Yield every record of these subjects from position `start` on, in order."""
        for manifest in self._reader.segments:
            if manifest.last >= start:
                yield from (record for record in self._within(manifest, subjects) if record.position >= start)

    def _within(self, manifest: SegmentManifest, subjects: Collection[str]) -> list[SegmentRecord]:
        """Return a segment's records of these subjects, in order. Subjects are compared: checksums may collide."""
        table, keys = self._table(manifest), np.array([_key(subject) for subject in subjects], np.uint32)
        begins, ends = np.searchsorted(table["key"], keys), np.searchsorted(table["key"], keys, side="right")
        rows = [row for begin, end in zip(begins.tolist(), ends.tolist(), strict=True) for row in range(begin, end)]
        if not rows:
            return []
        segment, names = self._segment(manifest), frozenset(subjects)
        records = map(segment.record, sorted(set(table["number"][rows].tolist())))
        foreign = self._reader.foreign(manifest)
        return [record for record in records if record.subject in names and record.position not in foreign]

    def _table(self, manifest: SegmentManifest) -> npt.NDArray[np.void]:
        table = self._tables.get(manifest.segment)
        if table is None:
            path = self._folder / f"{manifest.sha256}.rows"
            table = _read(path, manifest.count)
            if table is None:
                table = make_table(self._segment(manifest))
                if len(table) >= WORTH_KEEPING:
                    _write(path, table)
            self._tables[manifest.segment] = table
        return table

    def _segment(self, manifest: SegmentManifest) -> Segment:
        segment = self._segments.get(manifest.segment)
        if segment is None:
            segment = self._segments[manifest.segment] = self._reader.segment(manifest)
            if len(self._segments) > KEPT:
                self._segments.popitem(last=False)
        self._segments.move_to_end(manifest.segment)
        return segment


def make_table(segment: Segment) -> npt.NDArray[np.void]:
    """Return (checksum of the subject, number within the segment) of a segment's records, sorted."""
    table = np.empty(len(segment), _ENTRY)
    table["key"] = np.fromiter(map(_key, segment.subjects), np.uint32, len(segment))
    table["number"] = np.arange(len(segment))
    return table[np.lexsort((table["number"], table["key"]))]


def cache_folder() -> Path:
    """Return the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _key(subject: str) -> int:
    return zlib.crc32(subject.encode())


def _read(path: Path, count: int) -> npt.NDArray[np.void] | None:
    """Return a stored table, or None if it is missing or incomplete: the checksum comes last."""
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    body, check = stored[:-4], stored[-4:]
    if len(body) != count * _ENTRY.itemsize or zlib.crc32(body).to_bytes(4, "little") != check:
        return None
    return np.frombuffer(body, _ENTRY)


def _write(path: Path, table: npt.NDArray[np.void]) -> None:
    body = table.tobytes()
    temp = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temp.write_bytes(body + zlib.crc32(body).to_bytes(4, "little"))
        temp.replace(path)
    except OSError:  # the folder is read-only or full: the table is built again next time
        return
