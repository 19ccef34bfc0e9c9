"""`ArchiveWriter`: the log as verified segments on any fsspec URL, during the run."""

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
"""Bytes of records, uncompressed, at which a segment is sealed."""


class ArchiveWriter:
    """Collects events of `run` with `add` and writes them with `seal`; a new one continues after the last segment.

    Everything lies in the folder `run` under `url` (a path, `file://`, `memory://`, `s3://`; `options` go to fsspec).
    blobs: where the payloads lie that events name. Given it, they are copied too, each before the segment that names
    it is sealed, so that the archive alone is enough; without, the archive has the events only.

    Synchronous: an event loop calls `seal` and `close` in a thread. A failed `seal` may be called again; nothing that
    was added is forgotten before its segment is verified and its manifest written.
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
        """The position that `add` takes next."""
        return self._chain.last + len(self._records) + 1

    @property
    def segments(self) -> list[SegmentManifest]:
        """What is sealed, in order."""
        return list(self._chain.manifests)

    def locate(self, manifest: SegmentManifest) -> str:
        """The URL of a segment."""
        return self._objects.locate(manifest.name)

    def add(self, recorded: Recorded | ForeignRecord) -> None:
        """Take the record at `next_position`. Raises ArchiveDamaged for any other: it would be a gap or a repeat."""
        if recorded.position != self.next_position:
            raise ArchiveDamaged(
                f"the archive at {self.url} needs position {self.next_position} and was given {recorded.position}: "
                "read the log from there"
            )
        record = SegmentRecord(recorded.position, recorded.subject, recorded.data)
        self._records.append(record)
        self.pending_bytes += raw_bytes(record)
        if isinstance(recorded, ForeignRecord):
            self._foreign.append(recorded.position)
        elif self._blobs is not None:
            self._refs |= dict.fromkeys(blob_refs(recorded.envelope.event))

    def seal(self) -> SegmentManifest | None:
        """Write the added events as one segment, read it back, commit its manifest; None where nothing was added.

        Raises StoreUnavailable, NoSpace (try again: it is the same segment, whatever was added since), ArchiveDamaged
        (other bytes were read back than written), Conflict (another writer sealed it first: open the archive anew),
        BlobMissing, BlobDamaged (a blob that is to be copied).
        """
        if not self._records:
            return None
        self._copy_blobs()
        # A failed attempt may have been stored all the same, so a retry must be the same bytes.
        self._attempt = manifest, data = self._attempt or self._describe(pack(LAYOUT, self._records))
        self._write_verified(manifest, data)
        self._commit(manifest)
        del self._records[: manifest.count]
        del self._foreign[: len(manifest.foreign or ())]
        self.pending_bytes -= manifest.raw_bytes
        self._attempt = None
        return manifest

    def close(self) -> None:
        """Seal the rest and mark the archive complete. Whoever resumes the run may still go on with it."""
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
        """Over the events that were added; empty where the sealed segments have no chain to continue."""
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
                f"another writer has sealed segment {manifest.segment} of {self.url}: stop one of the two",
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
        # A name carries its digest, so other content under it is damage: put it right once, then give up.
        self._objects.replace(manifest.name, data)
        if self._objects.read(manifest.name) != data:
            raise ArchiveDamaged(
                f"segment {manifest.segment} (positions {manifest.first} to {manifest.last}) reads back differently "
                f"from {self.locate(manifest)}: the store does not keep what it is given, use another"
            )


def blobs_to_archive(blob_url: str, archive_url: str, run_folder: str | Path) -> BlobStore | None:
    """The store whose blobs go into the archive; None where they stay.

    An archive outside of the run's folder must do when that folder is gone. So blobs on a local disk go with it, while
    those in an object store stay where they are, and an archive within the folder is not filled with copies.
    """
    blobs = BlobStore(blob_url)
    archive = ObjectFolder(archive_url).local
    inside = archive is not None and archive.absolute().is_relative_to(Path(run_folder).absolute())
    return blobs if blobs.is_local and not inside else None
