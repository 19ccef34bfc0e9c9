"""`ArchiveReader`: the archived log, in order, every byte checked on the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from schemas.codec import decode
from schemas.errors import ArchiveDamaged
from storage.archive.manifest import BLOBS, ManifestChain, SegmentManifest, digest_of
from storage.archive.segment import Segment, SegmentRecord, unpack
from storage.blobs import BlobStore
from storage.hash_chain import link_all
from storage.log import Recorded
from storage.object_store import ObjectFolder


@dataclass(frozen=True, slots=True)
class ArchiveSummary:
    """An archive that was read through: how many segments and events, their stored bytes, whether its run ended."""

    segments: int
    events: int
    bytes: int
    closed: bool


class ArchiveReader:
    """Reads what was sealed when it was opened. Raises ArchiveDamaged for what is missing or changed.

    An archive in which nothing was sealed yet (or an empty folder) has no events.
    """

    def __init__(self, url: str, run: str, options: Mapping[str, Any] | None = None) -> None:
        self.run = run
        self._objects = ObjectFolder(f"{url.rstrip('/')}/{run}", options)
        self._chain = ManifestChain(self._objects).load()
        self.closed = self._chain.closed()
        self.blobs = BlobStore(f"{self._objects.url}/{BLOBS}", options)
        """Payloads that were archived with the events; the store is empty where they lie elsewhere."""

    @property
    def url(self) -> str:
        """Where the archive lies."""
        return self._objects.url

    @property
    def segments(self) -> list[SegmentManifest]:
        """The manifests, in order."""
        return list(self._chain.manifests)

    @property
    def last(self) -> int:
        """The last archived position, 0 for none."""
        return self._chain.last

    def read(self, start: int = 1) -> Iterator[Recorded]:
        """Events from position `start`. Raises ArchiveDamaged, StoreUnavailable, and SchemaError as `decode` does."""
        for record in self.records(start):
            yield Recorded(record.position, record.subject, decode(record.data), record.data)

    def records(self, start: int = 1) -> Iterator[SegmentRecord]:
        """The same without decoding the events: position, subject, exact bytes."""
        for manifest in self._chain.manifests:
            if manifest.last >= start:
                yield from self.records_of(manifest, start)

    def verify(self) -> ArchiveSummary:
        """Read everything and check every digest, position and link, without decoding events."""
        chain = b""
        for manifest in self._chain.manifests:
            before, chain = link_all(chain, (record.data for record in self.records_of(manifest)))
            if manifest.chain and (manifest.before, manifest.chain) != (before.hex(), chain.hex()):
                raise self.unlinked_segment(manifest)
        stored = sum(manifest.bytes for manifest in self._chain.manifests)
        return ArchiveSummary(len(self._chain.manifests), self.last, stored, self.closed)

    def damaged(self) -> list[SegmentManifest]:
        """The segments that are missing or not what their manifests say."""
        found = []
        for manifest in self._chain.manifests:
            try:
                _ = self.segment(manifest).subjects
            except ArchiveDamaged:
                found.append(manifest)
        return found

    def segment(self, manifest: SegmentManifest) -> Segment:
        """A segment, read and checked as a whole."""
        data = self._stored(manifest)
        try:
            return unpack(manifest, data)
        except ArchiveDamaged as error:
            raise self.damaged_segment(manifest, str(error)) from error

    def _stored(self, manifest: SegmentManifest) -> bytes:
        """The segment as it lies there, if it is what its manifest says."""
        try:
            data = self._objects.read(manifest.name)
        except FileNotFoundError:
            raise self.damaged_segment(manifest, "it is missing") from None
        digest = digest_of(data)
        if len(data) != manifest.bytes or digest != manifest.sha256:
            raise self.damaged_segment(
                manifest,
                f"it has {len(data)} bytes with sha256 {digest}, its manifest says {manifest.bytes} bytes with "
                f"{manifest.sha256}",
            )
        return data

    def records_of(self, manifest: SegmentManifest, start: int = 1) -> Iterator[SegmentRecord]:
        """The records of one segment from position `start` on, in order."""
        segment = self.segment(manifest)
        try:
            yield from segment.records(max(0, start - manifest.first))
        except ArchiveDamaged as error:
            raise self.damaged_segment(manifest, str(error)) from error

    def damaged_segment(self, manifest: SegmentManifest, what: str) -> ArchiveDamaged:
        """What to raise where a segment is not what its manifest says."""
        return ArchiveDamaged(
            f"archive segment {manifest.segment} (positions {manifest.first} to {manifest.last}) at "
            f"{self._objects.locate(manifest.name)} is damaged: {what}. `slime-events archive RUN URL --repair` makes "
            "it again from the log where that is still there; else restore it from a copy"
        )

    def unlinked_segment(self, manifest: SegmentManifest) -> ArchiveDamaged:
        """What to raise where the events up to a segment's end are not those that its manifest's chain says."""
        return ArchiveDamaged(
            f"the events up to position {manifest.last} have another chain than the manifest of archive segment "
            f"{manifest.segment} at {self.url} says: they are not of one log. Archive it anew into an empty folder"
        )
