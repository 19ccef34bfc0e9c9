"""Manifests of an archive: one small JSON object per segment, and one that closes the archive.

Under `<archive URL>/<run>/`:

    segments/00000001-<sha256, 16 digits>.zst    the events (storage/archive/segment.py)
    manifest/00000001.json                       `SegmentManifest`: written once, after the segment was verified
    closed.json                                  `Closed`: the number of segments, if the run has ended
    blobs/                                       large payloads by sha256, if the run keeps them on a local disk

No object is appended to or rewritten, so files and object stores work the same. Creating a segment's manifest is the
commit: a segment without a manifest (its writer died) is not part of the archive, and of two writers one is refused.
Each manifest has the digest of the previous one, so no manifest can be replaced or lost unnoticed.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated

import msgspec

from schemas.doc import doc
from schemas.errors import ArchiveDamaged, UnknownSchemaVersion
from schemas.outside_json import read_json
from storage.compression import FRAME_LIMIT
from storage.digests import SHA256
from storage.object_store import ObjectFolder

CLOSED = "closed.json"
MANIFESTS = "manifest"
BLOBS = "blobs"
NO_PARENT = ""
LAYOUT = 2
"""Layout of new segments; older layouts can be read."""
MANIFEST_LIMIT = 64 << 20
"""Most bytes of a manifest: it has some hundreds, and a few for each foreign record."""
_sha256 = re.compile(SHA256)


class SegmentManifest(msgspec.Struct, frozen=True, kw_only=True):
    """One segment. A manifest may be malicious, so `malformed_field` is checked before its name becomes a path.

    With `before` and `chain` a reader need not hash every event. Both are empty in archives of older versions.
    """

    segment: Annotated[int, doc("Number of the segment, from 1.")]
    first: Annotated[int, doc("Log position of the first record.")]
    last: Annotated[int, doc("Log position of the last record, inclusive.")]
    count: Annotated[int, doc("Number of records; there are no gaps.")]
    bytes: Annotated[int, doc("Bytes of the stored object.")]
    raw_bytes: Annotated[int, doc("Bytes of the records before compression.")]
    sha256: Annotated[str, doc("sha256 (hex) of the stored object.")]
    name: Annotated[str, doc("Name of the object.")]
    parent: Annotated[str, doc("sha256 (hex) of the previous manifest's JSON; empty for the first.")]
    layout: Annotated[int, doc("Layout of the object (storage/archive/segment.py).")] = 1
    before: Annotated[str, doc("Hash chain (hex) over all events of the log before the segment's last event.")] = ""
    chain: Annotated[str, doc("Hash chain (hex) over all events of the log up to `last` (storage/hash_chain.py).")] = ""
    foreign: Annotated[
        tuple[int, ...] | None, doc("Positions of foreign records, in order; None in manifests of older versions.")
    ] = None


class Closed(msgspec.Struct, frozen=True, kw_only=True):
    """Mark of a complete archive, written when its run has ended."""

    segments: Annotated[int, doc("Number of segments.")]
    last: Annotated[int, doc("Last log position.")]
    head: Annotated[str, doc("sha256 (hex) of the last manifest's JSON.")]


def manifest_name(segment: int) -> str:
    return f"{MANIFESTS}/{segment:08d}.json"


def segment_name(segment: int, sha256: str) -> str:
    """Return the name of a segment. It has the digest, so remains of a dead writer do not collide with it."""
    return f"segments/{segment:08d}-{sha256[:16]}.zst"


def to_json(manifest: SegmentManifest | Closed) -> bytes:
    """Return the stored bytes; `parent` and `head` are digests of these."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def digest_of(stored: bytes) -> str:
    """Return the sha256 (hex)."""
    return hashlib.sha256(stored).hexdigest()


class ManifestChain:
    """Manifests of an archive in order, checked while they are read."""

    def __init__(self, objects: ObjectFolder) -> None:
        self._objects = objects
        self.manifests: list[SegmentManifest] = []
        self._names = set[str]()
        self.head = NO_PARENT

    def load(self) -> ManifestChain:
        """Read the manifests since the last call. Raises ArchiveDamaged, UnknownSchemaVersion, StoreUnavailable."""
        names = self._objects.names(MANIFESTS)[len(self.manifests) :]
        for name, stored in zip(names, self._objects.read_all(names, MANIFEST_LIMIT), strict=True):
            self._add(name, stored)
        return self

    @property
    def last(self) -> int:
        """Last archived position; 0 if there is none."""
        return self.manifests[-1].last if self.manifests else 0

    def closed(self) -> bool:
        """Return whether the run ended and nothing followed. Raises ArchiveDamaged if segments are missing."""
        try:
            stored = self._objects.read(CLOSED, MANIFEST_LIMIT)
        except FileNotFoundError:
            return False
        where = self._objects.locate(CLOSED)
        try:
            closed = read_json(stored, Closed)
        except msgspec.DecodeError as error:
            raise ArchiveDamaged(f"{where} is damaged ({error}): restore it from a copy") from error
        if closed.segments > len(self.manifests):
            missing = self._objects.locate(manifest_name(len(self.manifests) + 1))
            raise ArchiveDamaged(
                f"{where} lists {closed.segments} segments up to position {closed.last}, but there are "
                f"{len(self.manifests)}: restore {missing} and all later manifests from a copy"
            )
        if closed.segments == len(self.manifests) and closed.head != self.head:
            raise ArchiveDamaged(f"{where} belongs to another last manifest: restore both from a copy")
        return closed.segments == len(self.manifests)

    def _add(self, name: str, stored: bytes) -> None:
        where, number = self._objects.locate(name), len(self.manifests) + 1
        if name != manifest_name(number):
            raise ArchiveDamaged(
                f"segment {number}, from position {self.last + 1}, has no manifest: the next manifest is {where}. "
                f"Restore {self._objects.locate(manifest_name(number))} from a copy"
            )
        try:
            manifest = read_json(stored, SegmentManifest)
        except msgspec.DecodeError as error:
            raise ArchiveDamaged(f"{where} is damaged ({error}): restore it from a copy") from error
        if manifest.layout > LAYOUT:
            raise UnknownSchemaVersion(
                f"{where} is for a segment in layout {manifest.layout}, this version knows up to {LAYOUT}: upgrade"
            )
        if manifest.parent != self.head or manifest.segment != number:
            raise ArchiveDamaged(
                f"{where} does not follow the manifest before it (segment {number - 1}): one of them was changed. "
                "Restore both from a copy"
            )
        if manifest.first != self.last + 1 or manifest.count != manifest.last - manifest.first + 1:
            raise ArchiveDamaged(
                f"{where} holds {manifest.count} events at positions {manifest.first} to {manifest.last}, after "
                f"position {self.last}: there is a gap. Archive the log again into an empty folder"
            )
        malformed = "name" if manifest.name in self._names else malformed_field(manifest)
        if malformed:
            raise ArchiveDamaged(f"{where}: {malformed} is malformed: the manifest was changed. Restore it from a copy")
        self.manifests.append(manifest)
        self._names.add(manifest.name)
        self.head = digest_of(stored)


def malformed_field(manifest: SegmentManifest) -> str:
    """Return the name of a malformed field, or an empty text if there is none.

    A name must be an object directly in the folder of segments, a digest must have 64 hexadecimal digits, sizes have
    limits, and foreign positions must be within the segment, in order.
    """
    foreign = manifest.foreign or ()
    forms = {
        "name": re.fullmatch(r"segments/\w[\w.-]{0,99}", manifest.name, re.ASCII),
        "sha256": _sha256.match(manifest.sha256),
        "before": not manifest.before or _sha256.match(manifest.before),
        "chain": not manifest.chain or _sha256.match(manifest.chain),
        "count": 0 < manifest.count <= FRAME_LIMIT,
        "bytes": 0 < manifest.bytes <= FRAME_LIMIT,
        "raw_bytes": 0 <= manifest.raw_bytes <= FRAME_LIMIT,
        "foreign": len(foreign) <= manifest.count
        and list(foreign) == sorted({position for position in foreign if manifest.first <= position <= manifest.last}),
    }
    return next((name for name, is_well_formed in forms.items() if not is_well_formed), "")
