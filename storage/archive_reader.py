"""`ArchiveReader`: the archived log, in order, every byte checked on the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from schemas.codec import decode
from schemas.errors import ArchiveDamaged
from storage.archive_manifest import BLOBS, ManifestChain, SegmentManifest, digest_of
from storage.archive_segment import SegmentRecord, unpack_raw, unpack_segment
from storage.blobs import BlobStore
from storage.log import Recorded
from storage.objects import ObjectFolder


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
            if manifest.last < start:
                continue
            for record in self.records_of(manifest):
                if record.position >= start:
                    yield record

    def verify(self) -> ArchiveSummary:
        """Read everything and check every digest and position, without decoding events."""
        events = sum(1 for _ in self.records())
        stored = sum(manifest.bytes for manifest in self._chain.manifests)
        return ArchiveSummary(len(self._chain.manifests), events, stored, self.closed)

    def damaged(self) -> list[SegmentManifest]:
        """The segments that are missing or not what their manifests say."""
        found = []
        for manifest in self._chain.manifests:
            try:
                for _ in self.records_of(manifest):
                    pass
            except ArchiveDamaged:
                found.append(manifest)
        return found

    def raw(self, manifest: SegmentManifest) -> bytes:
        """A segment's records as they lie behind each other (storage/archive_segment.py), checked as a whole."""
        data = self._stored(manifest)
        try:
            return unpack_raw(data)
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

    def records_of(self, manifest: SegmentManifest) -> Iterator[SegmentRecord]:
        """The records of one segment, in order."""
        data = self._stored(manifest)
        position = manifest.first
        try:
            for record in unpack_segment(data):
                if record.position != position:
                    raise ArchiveDamaged(f"position {record.position} stands where {position} should")
                yield record
                position += 1
        except ArchiveDamaged as error:
            raise self.damaged_segment(manifest, str(error)) from error
        if position != manifest.last + 1:
            raise self.damaged_segment(manifest, f"it ends at position {position - 1}")

    def damaged_segment(self, manifest: SegmentManifest, what: str) -> ArchiveDamaged:
        """What to raise where a segment is not what its manifest says."""
        return ArchiveDamaged(
            f"archive segment {manifest.segment} (positions {manifest.first} to {manifest.last}) at "
            f"{self._objects.locate(manifest.name)} is damaged: {what}. `slime-events archive RUN URL --repair` makes "
            "it again from the log where that is still there; else restore it from a copy"
        )
