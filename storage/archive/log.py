"""`ArchivedLog`: an archive as a read-only log."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Sequence
from itertools import pairwise

from schemas.subjects import matches, named_by
from storage.archive.index import ArchiveIndex
from storage.archive.manifest import SegmentManifest
from storage.archive.reader import ArchiveReader, recorded_of
from storage.archive.segment import Segment, SegmentRecord
from storage.event_block import MANY, EventBlock, Part
from storage.hash_chain import link_all
from storage.log import ForeignRecord, Recorded, Subjects, is_wanted

AHEAD = 2
"""Segments that are read ahead in threads: reading, hashing and unpacking release the interpreter's lock."""


class ArchivedLog:
    """A `Readable` of what was sealed when the reader was opened. Raises as `ArchiveReader`."""

    def __init__(self, reader: ArchiveReader, run: str) -> None:
        self.reader, self.run = reader, run
        self._index = ArchiveIndex(reader)

    async def read(self, start: int = 1, subject: Subjects = None, *, follow: bool = False) -> AsyncIterator[Recorded]:
        """See `Readable.read`. Raises ValueError for `follow`: an archive gets no new events."""
        if follow:
            raise ValueError(f"{self.reader.url} is an archive, and nothing is appended to it: read it to its end")
        for number, record in enumerate(self._records(start, subject)):
            if is_wanted(record.subject, subject):
                yield recorded_of(record)
            if not number % 1000:
                await asyncio.sleep(0)

    async def read_records(
        self, start: int = 1, *, follow: bool = False
    ) -> AsyncGenerator[Recorded | ForeignRecord, None]:
        """See `Readable.read_records`. Raises as `read`."""
        if follow:
            raise ValueError(f"{self.reader.url} is an archive, and nothing is appended to it: read it to its end")
        for number, record in enumerate(self.reader.read_records(start)):
            yield record
            if not number % 1000:
                await asyncio.sleep(0)

    def records(self, start: int = 1) -> Iterator[SegmentRecord]:
        """Yield every event from position `start` undecoded, for readers that decode few fields of some events."""
        return self.reader.records(start)

    async def event_blocks(self, start: int, chain: bytes, every: int | None) -> AsyncGenerator[EventBlock, None]:
        """See `HasEventBlocks`. Without `every`, a block is a segment, and its chain is the manifest's."""
        async with contextlib.aclosing(_segments(self.reader, start)) as segments:
            async for manifest, segment in segments:
                for block in _of_segment(self.reader, manifest, segment, start, chain, every):
                    chain = block.chain
                    yield block
                    await asyncio.sleep(0)

    def _records(self, start: int, subject: Subjects) -> Iterator[SegmentRecord]:
        """Yield a superset of the selected records."""
        named = named_by(subject) if isinstance(subject, str) else None
        return self.reader.records(start) if named is None else self._index.of_subjects(named, start)

    async def last(self, subject: str) -> Recorded | None:
        named = named_by(subject)
        if named is not None:
            last = self._index.last_of_each(named)
            return recorded_of(max(last.values(), key=lambda record: record.position)) if last else None
        return next(map(recorded_of, self._backwards(subject)), None)

    def _backwards(self, subject: str) -> Iterator[SegmentRecord]:
        for manifest in reversed(self.reader.segments):
            within = [record for record in self.reader.records_of(manifest) if matches(subject, record.subject)]
            yield from reversed(within)

    async def last_of_each(self, subjects: Sequence[str]) -> dict[str, Recorded]:
        last = await asyncio.to_thread(self._index.last_of_each, subjects)
        return {subject: recorded_of(record) for subject, record in last.items()}

    async def subjects(self, pattern: str, start: int = 1) -> list[str]:
        return await asyncio.to_thread(self._subjects, pattern, start)

    def _subjects(self, pattern: str, start: int) -> list[str]:
        named: dict[str, None] = {}
        for manifest in self.reader.segments:
            if manifest.last >= start:
                subjects, foreign = self.reader.segment(manifest).subjects, self.reader.foreign(manifest)
                named |= dict.fromkeys(
                    subject for position, subject in enumerate(subjects, manifest.first) if position not in foreign
                )
        return [subject for subject in named if matches(pattern, subject)]

    async def position(self) -> int:
        for manifest in reversed(self.reader.segments):
            foreign = await asyncio.to_thread(self.reader.foreign, manifest)
            for position in range(manifest.last, manifest.first - 1, -1):
                if position not in foreign:
                    return position
        return 0

    async def end(self) -> int:
        return self.reader.last


async def _segments(reader: ArchiveReader, start: int) -> AsyncGenerator[tuple[SegmentManifest, Segment], None]:
    """Yield the segments with positions from `start` on, in order."""
    loop, ahead = asyncio.get_running_loop(), deque[tuple[SegmentManifest, asyncio.Future[Segment]]]()
    left = [manifest for manifest in reversed(reader.segments) if manifest.last >= start]
    try:
        while left or ahead:
            while left and len(ahead) <= AHEAD:
                manifest = left.pop()
                ahead.append((manifest, loop.run_in_executor(None, reader.segment, manifest)))
            manifest, reading = ahead.popleft()
            yield manifest, await reading
    finally:
        for _, reading in ahead:
            reading.cancel()


def _of_segment(
    reader: ArchiveReader, manifest: SegmentManifest, segment: Segment, start: int, chain: bytes, every: int | None
) -> Iterator[EventBlock]:
    foreign = reader.foreign(manifest)
    if every is None and manifest.chain and start <= manifest.first:
        spans = _spans(manifest.first, manifest.last, foreign)
        before, after = bytes.fromhex(manifest.before), bytes.fromhex(manifest.chain)
        if spans and link_all(before, _datas(segment, [(spans[-1][1], spans[-1][1])])) != (before, after):
            raise reader.unlinked_segment(manifest)
        if spans:
            yield _block(segment, spans, before, after)
        return
    first = max(start, manifest.first)
    while first <= manifest.last:
        last = manifest.last if every is None else min(manifest.last, -(-first // every) * every)
        if spans := _spans(first, last, foreign):
            before, chain = link_all(chain, _datas(segment, spans))
            yield _block(segment, spans, before, chain)
        first = last + 1


_Spans = Sequence[tuple[int, int]]
"""First and last positions of events without a foreign record between them."""


def _spans(first: int, last: int, foreign: Collection[int]) -> _Spans:
    bounds = [first - 1, *sorted(position for position in foreign if first <= position <= last), last + 1]
    return [(before + 1, after - 1) for before, after in pairwise(bounds) if before + 1 < after]


def _datas(segment: Segment, spans: _Spans) -> Iterator[bytes]:
    for first, last in spans:
        yield from segment.datas(first - segment.first, last + 1 - segment.first)


def _block(segment: Segment, spans: _Spans, before: bytes, chain: bytes) -> EventBlock:
    return EventBlock(spans[0][0], spans[-1][1], before, chain, _parts(segment, spans))


def _parts(segment: Segment, spans: _Spans) -> Iterator[Part]:
    for first, last in spans:
        arrays = segment.arrays(first - segment.first, last + 1 - segment.first)
        yield from map(Part, range(first, last + 1, MANY), arrays)
