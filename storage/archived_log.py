"""`ArchivedLog`: an archive, read as the log that it is a copy of. Nothing can be appended to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from schemas.codec import decode
from schemas.subjects import matches
from storage.archive_reader import ArchiveReader
from storage.archive_segment import SegmentRecord
from storage.log import Recorded


class ArchivedLog:
    """What was sealed when the reader was opened; a `Readable`. Raises as `ArchiveReader`."""

    def __init__(self, reader: ArchiveReader, run: str) -> None:
        self._reader, self.run = reader, run

    async def read(
        self, start: int = 1, subject: str | None = None, *, follow: bool = False
    ) -> AsyncIterator[Recorded]:
        """Events from position `start` that match the filter. Raises ValueError for `follow`: nothing will come."""
        if follow:
            raise ValueError(f"{self._reader.url} is an archive, and nothing is appended to it: read it to its end")
        for number, record in enumerate(self._reader.records(start)):
            if subject is None or matches(subject, record.subject):
                yield _recorded(record)
            if not number % 1000:
                await asyncio.sleep(0)

    async def last(self, subject: str) -> Recorded | None:
        """The last event that matches the filter."""
        found = None
        for record in self._reader.records():
            if matches(subject, record.subject):
                found = record
        return None if found is None else _recorded(found)

    async def position(self) -> int:
        """The last position, 0 for an empty archive."""
        return self._reader.last


def _recorded(record: SegmentRecord) -> Recorded:
    return Recorded(record.position, record.subject, decode(record.data), record.data)
