"""Stretches of an archive: segments, read and checked by threads -> linked, or the manifest's links -> `Stretch`."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Iterator

from storage.archive.manifest import SegmentManifest
from storage.archive.reader import ArchiveReader
from storage.archive.segment import Segment
from storage.event_block import Stretch
from storage.hash_chain import link_all

AHEAD = 2
"""Segments that are read while one is worked on: reading, hashing and unpacking leave the interpreter to others."""


async def stretches(
    reader: ArchiveReader, start: int, chain: bytes, every: int | None
) -> AsyncGenerator[Stretch, None]:
    """See `Stretched`. Without `every` a stretch is a segment, and its chain the one that its manifest says.

    Raises as `ArchiveReader`.
    """
    async with contextlib.aclosing(_segments(reader, start)) as segments:
        async for manifest, segment in segments:
            for stretch in _of_segment(reader, manifest, segment, start, chain, every):
                chain = stretch.chain
                yield stretch
                await asyncio.sleep(0)


async def _segments(reader: ArchiveReader, start: int) -> AsyncGenerator[tuple[SegmentManifest, Segment], None]:
    """Those with something from position `start` on, in order."""
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
) -> Iterator[Stretch]:
    if every is None and manifest.chain and start <= manifest.first:
        before, after = bytes.fromhex(manifest.before), bytes.fromhex(manifest.chain)
        if link_all(before, segment.datas(manifest.count - 1)) != (before, after):
            raise reader.unlinked_segment(manifest)
        yield _stretch(segment, manifest.first, manifest.last, before, after)
        return
    first = max(start, manifest.first)
    while first <= manifest.last:
        last = manifest.last if every is None else min(manifest.last, -(-first // every) * every)
        datas = segment.datas(first - manifest.first, last + 1 - manifest.first)
        before, chain = link_all(chain, datas)
        yield _stretch(segment, first, last, before, chain)
        first = last + 1


def _stretch(segment: Segment, first: int, last: int, before: bytes, chain: bytes) -> Stretch:
    arrays = segment.arrays(first - segment.first, last + 1 - segment.first)
    return Stretch(first, last, before, chain, arrays)
