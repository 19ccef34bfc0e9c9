"""Copy between a log and its archive: `archive_log`, `restore_log`, and `repair_archive` for damaged segments."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Annotated, Any

from schemas.arrays import BlobRef
from schemas.doc import doc
from schemas.errors import ArchiveDamaged, BlobMissing, Conflict, LogDamaged, StorageError
from schemas.runs import RunFinished
from schemas.subjects import about
from storage.archive.manifest import SegmentManifest, digest_of
from storage.archive.reader import ArchiveReader
from storage.archive.segment import SegmentRecord, pack
from storage.archive.writer import SEGMENT_BYTES, ArchiveWriter
from storage.blobs import BlobStore
from storage.log import EventLog, ForeignRecord, Recorded, Restorable, in_batches
from storage.object_store import ObjectFolder
from storage.payloads import blob_refs

OnProgress = Callable[[int, int], None]
"""Called after each batch with the restored position and the last position."""


async def archive_log(log: EventLog, writer: ArchiveWriter) -> int:
    """Archive everything from the archive's end to the log's, and close the archive if the run has finished.

    It is for a run without an archivist, and appends nothing to the log. Returns the number of archived records. Raises
    as `ArchiveWriter.seal` and `EventLog.read`.
    """
    begin = writer.next_position
    async for recorded in log.read_records(begin):
        writer.add(recorded)
        if writer.pending_bytes >= SEGMENT_BYTES:
            await asyncio.to_thread(writer.seal)
    last = await log.last(about(log.run, "run", "run"))
    if last is not None and isinstance(last.envelope.event, RunFinished):
        await asyncio.to_thread(writer.close)
    else:
        await asyncio.to_thread(writer.seal)
    return writer.next_position - begin


async def repair_archive(
    log: Restorable, url: str, run: str, options: Mapping[str, Any] | None = None
) -> list[SegmentManifest]:
    """Write every damaged or missing segment again from the log, and return those segments.

    Equal events give equal bytes, which are checked against the manifests. Raises ArchiveDamaged if a manifest is
    damaged, or if the log does not give the segment of a manifest; LogDamaged, LogUnavailable, StoreUnavailable.
    """
    reader = await asyncio.to_thread(ArchiveReader, url, run, options)
    objects = ObjectFolder(reader.url, options)
    damaged = await asyncio.to_thread(reader.damaged)
    for manifest in damaged:
        data = await _from_log(log, manifest)
        if digest_of(data) != manifest.sha256:
            raise ArchiveDamaged(
                f"positions {manifest.first} to {manifest.last} of the log do not give segment {manifest.segment} of "
                f"{reader.url} again: it is the archive of another log, or was compressed by another version of zstd. "
                "Archive the log again into an empty folder"
            )
        await asyncio.to_thread(objects.replace, manifest.name, data)
    return damaged


async def _from_log(log: Restorable, manifest: SegmentManifest) -> bytes:
    records: list[SegmentRecord] = []
    async for recorded in log.read_records(manifest.first):
        if recorded.position > manifest.last:
            break
        records.append(SegmentRecord(recorded.position, recorded.subject, recorded.data))
    return await asyncio.to_thread(pack, manifest.layout, records)


@dataclass(frozen=True, slots=True)
class Restored:
    """Result of `restore_log`."""

    position: Annotated[int, doc("Last position of the restored log.")]
    before: Annotated[int, doc("Last position before, from an interrupted restore.")]
    blobs: Annotated[int, doc("Number of copied blobs.")]


async def restore_log(
    reader: ArchiveReader, log: Restorable, blobs: BlobStore, on_progress: OnProgress = lambda *_: None
) -> Restored:
    """Fill `log` from the archive, and `blobs` with the archived blobs that the events name.

    If the log has the beginning of the archive (an interrupted restore), it is continued. Raises Conflict if it has
    anything else, BlobMissing for a blob that neither the archive nor `blobs` has, ArchiveDamaged, LogUnavailable,
    StoreUnavailable.
    """
    if not reader.last:
        raise StorageError(f"the archive {reader.url} has no events: there is nothing to restore. Is it the right URL?")
    before = await log.end()
    if before > reader.last:
        raise Conflict(
            f"the log ends at position {before}, the archive {reader.url} at {reader.last}: restore into another log",
            subject=reader.url,
            expected=reader.last,
            actual=before,
        )
    copied = 0
    # The last stored record is restored first, alone: this checks that it is the archive's.
    records = reader.read_records(max(1, before))
    first = await asyncio.to_thread(list, islice(records, 1))
    batches = chain([first], in_batches(records, lambda record: len(record.data)))
    while batch := await asyncio.to_thread(next, batches, None):
        copied += await asyncio.to_thread(_copy_blobs, batch, reader.blobs, blobs)
        await log.restore(batch)
        on_progress(batch[-1].position, reader.last)
    end = await log.end()
    if end != reader.last:
        raise LogDamaged(f"the restored log ends at position {end}, the archive {reader.url} at {reader.last}")
    return Restored(end, before, copied)


def _copy_blobs(batch: Sequence[Recorded | ForeignRecord], archived: BlobStore, blobs: BlobStore) -> int:
    refs: dict[BlobRef, None] = {}
    for recorded in batch:
        if isinstance(recorded, Recorded):
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
