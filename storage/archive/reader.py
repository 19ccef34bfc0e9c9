"""`ArchiveReader`: read the archived log in order, and check every byte."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from schemas.codec import decode
from schemas.doc import doc
from schemas.errors import ArchiveDamaged
from storage.archive.manifest import BLOBS, ManifestChain, SegmentManifest, digest_of
from storage.archive.segment import Segment, SegmentRecord, unpack
from storage.blobs import BlobStore
from storage.hash_chain import link_all
from storage.log import ForeignRecord, Recorded, record_of
from storage.object_store import ObjectFolder


def recorded_of(record: SegmentRecord) -> Recorded:
    """Decode a record. Raises SchemaError."""
    return Recorded(record.position, record.subject, decode(record.data), record.data)


@dataclass(frozen=True, slots=True)
class ArchiveSummary:
    """Result of verifying an archive."""

    segments: Annotated[int, doc("Number of segments.")]
    events: Annotated[int, doc("Number of events.")]
    bytes: Annotated[int, doc("Stored bytes of the segments.")]
    closed: Annotated[bool, doc("Its run has ended.")]
    foreign: Annotated[int, doc("Number of foreign records.")] = 0


class ArchiveReader:
    """Reads what was sealed when it was opened. Raises ArchiveDamaged if a part is missing or changed.

    `segments` has the manifests in order, `last` is the last archived position (0: none). An archive without sealed
    segments (or an empty folder) has no events.
    """

    def __init__(self, url: str, run: str, options: Mapping[str, Any] | None = None) -> None:
        self.run = run
        self._objects = ObjectFolder(f"{url.rstrip('/')}/{run}", options)
        self.url = self._objects.url
        chain = ManifestChain(self._objects).load()
        self.segments, self.last, self.closed = chain.manifests, chain.last, chain.closed()
        self._judged: dict[int, frozenset[int]] = {}
        self.blobs = BlobStore(f"{self._objects.url}/{BLOBS}", options)
        """Payloads archived with the events; empty if the run keeps them elsewhere."""

    def read(self, start: int = 1) -> Iterator[Recorded]:
        """Yield events from position `start`. Raises ArchiveDamaged, StoreUnavailable, and SchemaError as `decode`."""
        return map(recorded_of, self.records(start))

    def records(self, start: int = 1) -> Iterator[SegmentRecord]:
        """Yield undecoded events from position `start`."""
        later = (self.records_of(manifest, start) for manifest in self.segments if manifest.last >= start)
        return itertools.chain.from_iterable(later)

    def read_records(self, start: int = 1) -> Iterator[Recorded | ForeignRecord]:
        """Yield all records from position `start`, including foreign ones."""
        for manifest in self.segments:
            if manifest.last >= start:
                foreign = self.foreign(manifest)
                for record in self._all_of(manifest, start):
                    yield self._foreign_of(record) if record.position in foreign else recorded_of(record)

    def foreign(self, manifest: SegmentManifest) -> frozenset[int]:
        """Return the positions of a segment's foreign records, judged once if an older manifest lacks them."""
        foreign = self._judged.get(manifest.segment)
        if foreign is None:
            positions: Iterable[int] | None = manifest.foreign
            if positions is None:
                positions = (record.position for record in self._all_of(manifest) if not self._is_event(record))
            foreign = self._judged[manifest.segment] = frozenset(positions)
        return foreign

    def _is_event(self, record: SegmentRecord) -> bool:
        return isinstance(record_of(self.run, record.position, record.subject, None, record.data), Recorded)

    def _foreign_of(self, record: SegmentRecord) -> Recorded | ForeignRecord:
        # An archive has no headers: a record that could be an event is foreign because it lacked its message id.
        return record_of(self.run, record.position, record.subject, "", record.data)

    def verify(self) -> ArchiveSummary:
        """Read everything and check every digest, position and link, without decoding events."""
        chain, foreign = b"", 0
        for manifest in self.segments:
            foreign += len(self.foreign(manifest))
            before, chain = link_all(chain, (record.data for record in self.records_of(manifest)))
            if manifest.chain and (manifest.before, manifest.chain) != (before.hex(), chain.hex()):
                raise self.unlinked_segment(manifest)
        stored = sum(manifest.bytes for manifest in self.segments)
        return ArchiveSummary(len(self.segments), self.last - foreign, stored, self.closed, foreign)

    def damaged(self) -> list[SegmentManifest]:
        """Return the segments that are missing or do not fit their manifests."""
        bad = []
        for manifest in self.segments:
            try:
                _ = self.segment(manifest).subjects
            except ArchiveDamaged:
                bad.append(manifest)
        return bad

    def segment(self, manifest: SegmentManifest) -> Segment:
        """Read a segment and check it as a whole."""
        data = self._stored(manifest)
        try:
            return unpack(manifest, data)
        except ArchiveDamaged as error:
            raise self.damaged_segment(manifest, str(error)) from error

    def _stored(self, manifest: SegmentManifest) -> bytes:
        """Return a segment's stored bytes, checked against its manifest."""
        try:
            data = self._objects.read(manifest.name, manifest.bytes)
        except FileNotFoundError:
            raise self.damaged_segment(manifest, "it is missing") from None
        digest = digest_of(data)
        if len(data) != manifest.bytes or digest != manifest.sha256:
            raise self.damaged_segment(
                manifest,
                f"it has {len(data)} bytes or more with sha256 {digest}, its manifest says {manifest.bytes} bytes with "
                f"{manifest.sha256}",
            )
        return data

    def records_of(self, manifest: SegmentManifest, start: int = 1) -> Iterator[SegmentRecord]:
        """Yield the events of one segment from position `start` on, in order."""
        foreign = self.foreign(manifest)
        records = self._all_of(manifest, start)
        return (record for record in records if record.position not in foreign) if foreign else records

    def _all_of(self, manifest: SegmentManifest, start: int = 1) -> Iterator[SegmentRecord]:
        segment = self.segment(manifest)
        try:
            return segment.records(max(0, start - manifest.first))
        except ArchiveDamaged as error:
            raise self.damaged_segment(manifest, str(error)) from error

    def damaged_segment(self, manifest: SegmentManifest, what: str) -> ArchiveDamaged:
        """Return the error for a segment that does not fit its manifest."""
        return ArchiveDamaged(
            f"archive segment {manifest.segment} (positions {manifest.first} to {manifest.last}) at "
            f"{self._objects.locate(manifest.name)} is damaged: {what}. `slime-events archive RUN URL --repair` "
            "repairs it if the log still exists; otherwise restore it from a copy"
        )

    def unlinked_segment(self, manifest: SegmentManifest) -> ArchiveDamaged:
        """Return the error for events that do not give the chain in a segment's manifest."""
        return ArchiveDamaged(
            f"the events up to position {manifest.last} do not give the chain in the manifest of archive segment "
            f"{manifest.segment} at {self.url}: they are from different logs. Archive the log again into an "
            "empty folder"
        )
