"""`ArchivedLog`: an archive, read as the log that it is a copy of. Nothing can be appended to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence

from schemas.codec import decode
from schemas.subjects import matches, named_by
from storage.archive.blocks import stretches
from storage.archive.index import ArchiveIndex
from storage.archive.reader import ArchiveReader
from storage.archive.segment import SegmentRecord
from storage.event_block import Stretch
from storage.log import Recorded, Subjects, is_wanted


class ArchivedLog:
    """What was sealed when the reader was opened; a `Readable`. Raises as `ArchiveReader`."""

    def __init__(self, reader: ArchiveReader, run: str) -> None:
        self._reader, self.run = reader, run
        self._index = ArchiveIndex(reader)

    @property
    def reader(self) -> ArchiveReader:
        """What it reads."""
        return self._reader

    async def read(self, start: int = 1, subject: Subjects = None, *, follow: bool = False) -> AsyncIterator[Recorded]:
        """Events from position `start` that are wanted. Raises ValueError for `follow`: nothing will come."""
        if follow:
            raise ValueError(f"{self._reader.url} is an archive, and nothing is appended to it: read it to its end")
        for number, record in enumerate(self._records(start, subject)):
            if is_wanted(record.subject, subject):
                yield _recorded(record)
            if not number % 1000:
                await asyncio.sleep(0)

    def records(self, start: int = 1) -> Iterator[SegmentRecord]:
        """Every event from position `start`, as it is stored: for those who decode a few fields of some."""
        return self._reader.records(start)

    def stretches(self, start: int, chain: bytes, every: int | None) -> AsyncGenerator[Stretch, None]:
        """See `Stretched`."""
        return stretches(self._reader, start, chain, every)

    def _records(self, start: int, subject: Subjects) -> Iterator[SegmentRecord]:
        """Those that match, and perhaps others."""
        named = named_by(subject) if isinstance(subject, str) else None
        return self._reader.records(start) if named is None else self._index.of_subjects(named, start)

    async def last(self, subject: str) -> Recorded | None:
        """The last event that matches the filter."""
        named = named_by(subject)
        if named is not None:
            found = self._index.last_of_each(named)
            return _recorded(max(found.values(), key=lambda record: record.position)) if found else None
        return next(map(_recorded, self._backwards(subject)), None)

    def _backwards(self, subject: str) -> Iterator[SegmentRecord]:
        for manifest in reversed(self._reader.segments):
            within = [record for record in self._reader.records_of(manifest) if matches(subject, record.subject)]
            yield from reversed(within)

    async def last_of_each(self, subjects: Sequence[str]) -> dict[str, Recorded]:
        """The last event of each of these subjects that has any."""
        found = await asyncio.to_thread(self._index.last_of_each, subjects)
        return {subject: _recorded(record) for subject, record in found.items()}

    async def position(self) -> int:
        """The last position, 0 for an empty archive."""
        return self._reader.last


def _recorded(record: SegmentRecord) -> Recorded:
    return Recorded(record.position, record.subject, decode(record.data), record.data)
