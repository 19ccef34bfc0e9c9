"""`ArchiveReader`: the archived log, in order, every byte checked on the way."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from schemas.codec import decode
from schemas.errors import ArchiveDamaged
from storage.archive.manifest import BLOBS, ManifestChain, SegmentManifest, digest_of
from storage.archive.segment import Segment, SegmentRecord, unpack
from storage.blobs import BlobStore
from storage.hash_chain import link_all
from storage.log import ForeignRecord, Recorded, record_of
from storage.object_store import ObjectFolder


def recorded_of(record: SegmentRecord) -> Recorded:
    """Decoded. Raises SchemaError."""
    return Recorded(record.position, record.subject, decode(record.data), record.data)


@dataclass(frozen=True, slots=True)
class ArchiveSummary:
    """An archive that was read through: how many segments, events and foreign records, their stored bytes, whether its
    run ended.
    """

    segments: int
    events: int
    bytes: int
    closed: bool
    foreign: int = 0


class ArchiveReader:
    """Reads what was sealed when it was opened. Raises ArchiveDamaged for what is missing or changed.

    segments: the manifests, in order. last: the last archived position, 0 for none. An archive in which nothing was
    sealed yet (or an empty folder) has no events.
    """

    def __init__(self, url: str, run: str, options: Mapping[str, Any] | None = None) -> None:
        self.run = run
        self._objects = ObjectFolder(f"{url.rstrip('/')}/{run}", options)
        self.url = self._objects.url
        chain = ManifestChain(self._objects).load()
        self.segments, self.last, self.closed = chain.manifests, chain.last, chain.closed()
        self._judged: dict[int, frozenset[int]] = {}
        self.blobs = BlobStore(f"{self._objects.url}/{BLOBS}", options)
        """Payloads that were archived with the events; the store is empty where they lie elsewhere."""

    def read(self, start: int = 1) -> Iterator[Recorded]:
        """Events from position `start`. Raises ArchiveDamaged, StoreUnavailable, and SchemaError as `decode` does."""
        return map(recorded_of, self.records(start))

    def records(self, start: int = 1) -> Iterator[SegmentRecord]:
        """The same without decoding the events: position, subject, exact bytes."""
        later = (self.records_of(manifest, start) for manifest in self.segments if manifest.last >= start)
        return itertools.chain.from_iterable(later)

    def read_records(self, start: int = 1) -> Iterator[Recorded | ForeignRecord]:
        """Everything from position `start`, foreign records too."""
        for manifest in self.segments:
            if manifest.last >= start:
                foreign = self.foreign(manifest)
                for record in self._all_of(manifest, start):
                    yield self._foreign_of(record) if record.position in foreign else recorded_of(record)

    def foreign(self, manifest: SegmentManifest) -> frozenset[int]:
        """The positions of a segment's foreign records: as its manifest says, or found out once where that is older."""
        found = self._judged.get(manifest.segment)
        if found is None:
            positions: Iterable[int] | None = manifest.foreign
            if positions is None:
                positions = (record.position for record in self._all_of(manifest) if not self._is_event(record))
            found = self._judged[manifest.segment] = frozenset(positions)
        return found

    def _is_event(self, record: SegmentRecord) -> bool:
        return isinstance(record_of(self.run, record.position, record.subject, None, record.data), Recorded)

    def _foreign_of(self, record: SegmentRecord) -> Recorded | ForeignRecord:
        # An archive keeps no headers: what could be an event was foreign for want of its message id.
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
        """The segments that are missing or do not fit their manifests."""
        bad = []
        for manifest in self.segments:
            try:
                _ = self.segment(manifest).subjects
            except ArchiveDamaged:
                bad.append(manifest)
        return bad

    def segment(self, manifest: SegmentManifest) -> Segment:
        """A segment, read and checked as a whole."""
        data = self._stored(manifest)
        try:
            return unpack(manifest, data)
        except ArchiveDamaged as error:
            raise self.damaged_segment(manifest, str(error)) from error

    def _stored(self, manifest: SegmentManifest) -> bytes:
        """The stored bytes of a segment, checked against its manifest."""
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
        """The events of one segment from position `start` on, in order."""
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
        """The error for a segment that does not fit its manifest."""
        return ArchiveDamaged(
            f"archive segment {manifest.segment} (positions {manifest.first} to {manifest.last}) at "
            f"{self._objects.locate(manifest.name)} is damaged: {what}. `slime-events archive RUN URL --repair` makes "
            "it again from the log where that is still there; else restore it from a copy"
        )

    def unlinked_segment(self, manifest: SegmentManifest) -> ArchiveDamaged:
        """The error where the events up to a segment's end do not give its manifest's chain."""
        return ArchiveDamaged(
            f"the events up to position {manifest.last} have another chain than the manifest of archive segment "
            f"{manifest.segment} at {self.url} says: they are not of one log. Archive it anew into an empty folder"
        )
