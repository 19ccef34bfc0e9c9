"""Making damaged segments of an archive again from the log that they were made of."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from schemas.errors import ArchiveDamaged
from storage.archive.layout import pack
from storage.archive.manifest import SegmentManifest, digest_of
from storage.archive.reader import ArchiveReader
from storage.archive.segment import SegmentRecord
from storage.log import Restorable
from storage.object_store import ObjectFolder


async def repair_archive(
    log: Restorable, url: str, run: str, options: Mapping[str, Any] | None = None
) -> list[SegmentManifest]:
    """Put every damaged or missing segment right; those that were. The same events give the same bytes.

    Manifests are not made again: they are what the segments are judged by. Raises ArchiveDamaged where a manifest is
    damaged, or where the log does not give what the manifest says; LogDamaged, LogUnavailable, StoreUnavailable.
    """
    reader = await asyncio.to_thread(ArchiveReader, url, run, options)
    objects = ObjectFolder(reader.url, options)
    damaged = await asyncio.to_thread(reader.damaged)
    for manifest in damaged:
        data = await _from_log(log, manifest)
        if digest_of(data) != manifest.sha256:
            raise ArchiveDamaged(
                f"positions {manifest.first} to {manifest.last} of the log do not give segment {manifest.segment} of "
                f"{reader.url} again: it is the archive of another log, or was packed by another version of zstd. "
                "Archive the log anew into an empty folder"
            )
        await asyncio.to_thread(objects.replace, manifest.name, data)
    return damaged


async def _from_log(log: Restorable, manifest: SegmentManifest) -> bytes:
    records: list[SegmentRecord] = []
    async for recorded in log.read(manifest.first):
        if recorded.position > manifest.last:
            break
        records.append(SegmentRecord(recorded.position, recorded.subject, recorded.data))
    return await asyncio.to_thread(pack, manifest, records)
