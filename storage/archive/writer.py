"""`ArchiveWriter`: write the log as verified segments to any fsspec URL, during the run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schemas.arrays import BlobRef
from schemas.errors import ArchiveDamaged, Conflict
from storage.archive.manifest import (
    BLOBS,
    CLOSED,
    LAYOUT,
    Closed,
    ManifestChain,
    SegmentManifest,
    digest_of,
    manifest_name,
    segment_name,
    to_json,
)
from storage.archive.segment import SegmentRecord, pack, raw_bytes
from storage.blobs import BlobStore
from storage.hash_chain import link_all
from storage.log import ForeignRecord, Recorded
from storage.object_store import ObjectFolder
from storage.payloads import blob_refs

SEGMENT_BYTES = 8 * 1024 * 1024
"""Uncompressed bytes of records at which a segment is sealed."""


class ArchiveWriter:
    """Collects events of `run` with `add` and writes them with `seal`. A new writer continues after the last segment.

    The archive is in the folder `run` under `url` (a path, `file://`, `memory://`, `s3://`; `options` go to fsspec).
    blobs: the run's blob store. If it is set, payloads are copied before the segment that names them is sealed, so the
    archive is self-contained; otherwise it has the events only.

    It is synchronous: an event loop calls `seal` and `close` in a thread. After an error, `seal` may be called again:
    added events are kept until their segment is verified and its manifest is written.
    """

    def __init__(
        self, url: str, run: str, options: Mapping[str, Any] | None = None, *, blobs: BlobStore | None = None
    ) -> None:
        self._objects = ObjectFolder(f"{url.rstrip('/')}/{run}", options)
        self.url = self._objects.url
        self._chain = ManifestChain(self._objects).load()
        self._blobs, self._copies = blobs, BlobStore(f"{self._objects.url}/{BLOBS}", options)
        self._refs: dict[BlobRef, None] = {}
        self._records: list[SegmentRecord] = []
        self._foreign: list[int] = []
        self._attempt: tuple[SegmentManifest, bytes] | None = None
        self.pending_bytes = 0

    @property
    def next_position(self) -> int:
        """Position that `add` accepts next."""
        return self._chain.last + len(self._records) + 1

    @property
    def segments(self) -> list[SegmentManifest]:
        """Sealed segments, in order."""
        return list(self._chain.manifests)

    def locate(self, manifest: SegmentManifest) -> str:
        return self._objects.locate(manifest.name)

    def add(self, recorded: Recorded | ForeignRecord) -> None:
        """Add the record at `next_position`. Raises ArchiveDamaged for another position: a gap or a repetition."""
        if recorded.position != self.next_position:
            raise ArchiveDamaged(
                f"the archive at {self.url} needs position {self.next_position} and got {recorded.position}: read the "
                "log from there"
            )
        record = SegmentRecord(recorded.position, recorded.subject, recorded.data)
        self._records.append(record)
        self.pending_bytes += raw_bytes(record)
        if isinstance(recorded, ForeignRecord):
            self._foreign.append(recorded.position)
        elif self._blobs is not None:
            self._refs |= dict.fromkeys(blob_refs(recorded.envelope.event))

    def seal(self) -> SegmentManifest | None:
        """Write the added events as one segment, read it back, and commit its manifest. Return None if there are none.

        Raises StoreUnavailable, NoSpace (a retry writes the same segment, without later events), ArchiveDamaged (the
        bytes read back differ), Conflict (another writer sealed the segment first: reopen the archive), BlobMissing,
        BlobDamaged (a blob to be copied).
        """
        if not self._records:
            return None
        self._copy_blobs()
        # A failed attempt may have been stored nevertheless, so a retry must write the same bytes.
        self._attempt = manifest, data = self._attempt or self._describe(pack(LAYOUT, self._records))
        self._write_verified(manifest, data)
        self._commit(manifest)
        del self._records[: manifest.count]
        del self._foreign[: len(manifest.foreign or ())]
        self.pending_bytes -= manifest.raw_bytes
        self._attempt = None
        return manifest

    def close(self) -> None:
        """Seal the rest and mark the archive complete. If the run is resumed, the archive can still be continued."""
        while self.seal() is not None:
            pass
        if self._chain.manifests:
            closed = Closed(segments=len(self._chain.manifests), last=self._chain.last, head=self._chain.head)
            self._objects.replace(CLOSED, to_json(closed))

    def _copy_blobs(self) -> None:
        while self._blobs is not None and self._refs:
            ref = next(iter(self._refs))
            if not self._copies.has(ref):
                self._copies.put(self._blobs.get(ref))
            del self._refs[ref]

    def _describe(self, data: bytes) -> tuple[SegmentManifest, bytes]:
        segment, digest = len(self._chain.manifests) + 1, digest_of(data)
        before, chain = self._links()
        manifest = SegmentManifest(
            segment=segment,
            first=self._chain.last + 1,
            last=self._chain.last + len(self._records),
            count=len(self._records),
            bytes=len(data),
            raw_bytes=self.pending_bytes,
            sha256=digest,
            name=segment_name(segment, digest),
            parent=self._chain.head,
            layout=LAYOUT,
            before=before,
            chain=chain,
            foreign=tuple(self._foreign),
        )
        return manifest, data

    def _links(self) -> tuple[str, str]:
        """Return the chain values of the added events, or empty texts if the sealed segments have no chain."""
        so_far = self._chain.manifests[-1].chain if self._chain.manifests else ""
        if self._chain.manifests and not so_far:
            return "", ""
        foreign = set(self._foreign)
        events = (record.data for record in self._records if record.position not in foreign)
        before, chain = link_all(bytes.fromhex(so_far), events)
        return before.hex(), chain.hex()

    def _commit(self, manifest: SegmentManifest) -> None:
        name, stored = manifest_name(manifest.segment), to_json(manifest)
        if not self._objects.create(name, stored) and self._objects.read(name) != stored:
            raise Conflict(
                f"another writer has sealed segment {manifest.segment} of {self.url}: stop one of the writers",
                subject=self._objects.locate(name),
                expected=manifest.segment - 1,
                actual=manifest.segment,
            )
        self._chain.manifests.append(manifest)
        self._chain.head = digest_of(stored)

    def _write_verified(self, manifest: SegmentManifest, data: bytes) -> None:
        self._objects.create(manifest.name, data)
        if self._objects.read(manifest.name) == data:
            return
        # The name has the digest, so different content is damage: replace it once, then give up.
        self._objects.replace(manifest.name, data)
        if self._objects.read(manifest.name) != data:
            raise ArchiveDamaged(
                f"segment {manifest.segment} (positions {manifest.first} to {manifest.last}) reads back differently "
                f"from {self.locate(manifest)}: the store does not keep written bytes, use another store"
            )


def blobs_to_archive(blob_url: str, archive_url: str, run_folder: str | Path) -> BlobStore | None:
    """Return the store whose blobs are copied into the archive, or None if they are not copied.

    An archive outside of the run's folder must work without that folder, so it gets copies of blobs on a local disk.
    Blobs in an object store stay there, and an archive within the run's folder gets no copies.
    """
    blobs = BlobStore(blob_url)
    archive = ObjectFolder(archive_url).local
    inside = archive is not None and archive.absolute().is_relative_to(Path(run_folder).absolute())
    return blobs if blobs.is_local and not inside else None
