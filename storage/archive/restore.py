"""`restore_log`: a log from its archive, with every position, id, subject and byte as it was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from schemas.arrays import BlobRef
from schemas.errors import BlobMissing, Conflict, LogDamaged, StorageError
from storage.archive.reader import ArchiveReader
from storage.blobs import BlobStore
from storage.log import MAX_BATCH, MAX_BATCH_BYTES, Recorded, Restorable
from storage.payloads import blob_refs

OnProgress = Callable[[int, int], None]
"""Called with the position that is restored and the last one, after each batch."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What was restored. position: the last. before: what an interrupted restore had left. blobs: copied now."""

    position: int
    before: int
    blobs: int


async def restore_log(
    reader: ArchiveReader, log: Restorable, blobs: BlobStore, on_progress: OnProgress = lambda *_: None
) -> Restored:
    """Fill `log` from the archive, and `blobs` with what the events name and the archive has.

    A log that holds the beginning of the archive (an interrupted restore) is filled from there on. Raises Conflict
    where it holds anything else, BlobMissing for a blob that neither the archive nor `blobs` has, ArchiveDamaged,
    LogUnavailable, StoreUnavailable.
    """
    if not reader.last:
        raise StorageError(f"the archive {reader.url} has no events: there is nothing to restore. Is it the right URL?")
    before = await log.position()
    if before > reader.last:
        raise Conflict(
            f"the log goes to position {before}, the archive {reader.url} to {reader.last}: restore elsewhere",
            subject=reader.url,
            expected=reader.last,
            actual=before,
        )
    copied = 0
    # The last event that is there goes first: storing it again does nothing, if it is the archive's.
    batches = _batches(reader, max(1, before))
    while batch := await asyncio.to_thread(next, batches, None):
        copied += await asyncio.to_thread(_copy_blobs, batch, reader.blobs, blobs)
        await log.restore(batch)
        on_progress(batch[-1].position, reader.last)
    end = await log.position()
    if end != reader.last:
        raise LogDamaged(f"the restored log ends at position {end}, the archive {reader.url} at {reader.last}")
    return Restored(end, before, copied)


def _batches(reader: ArchiveReader, start: int) -> Iterator[list[Recorded]]:
    """What one atomic call can hold; the event at `start` alone, as it may be there already."""
    batch: list[Recorded] = []
    size = 0
    for recorded in reader.read(start):
        alone = bool(batch) and batch[0].position == start
        if alone or len(batch) == MAX_BATCH or (batch and size + len(recorded.data) > MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(recorded)
        size += len(recorded.data)
    if batch:
        yield batch


def _copy_blobs(batch: Sequence[Recorded], archived: BlobStore, blobs: BlobStore) -> int:
    refs: dict[BlobRef, None] = {}
    for recorded in batch:
        refs |= dict.fromkeys(blob_refs(recorded.envelope.event))
    missing = [ref for ref in refs if not blobs.has(ref)]
    for ref in missing:
        try:
            blobs.put(archived.get(ref))
        except BlobMissing as error:
            raise BlobMissing(
                f"blob {ref.sha256} ({ref.size} bytes) is neither at {blobs.url} nor in the archive at {archived.url}: "
                "bring the run's blob store there, then restore again"
            ) from error
    return len(missing)
