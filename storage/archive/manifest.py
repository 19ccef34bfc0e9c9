"""Manifests of an archive: one small JSON object per segment, and one that closes it.

Under `<archive URL>/<run>/`:

    segments/00000001-<sha256, 16 digits>.zst    the events (storage/archive/segment.py)
    manifest/00000001.json                       `SegmentManifest`: written once, after the segment was verified
    closed.json                                  `Closed`: how many segments there are, when a run has ended
    blobs/                                       large payloads by sha256, where the run's own store is not as lasting

Nothing is appended to or rewritten, so it works the same on files and on object stores. Creating a segment's manifest
is the commit: a segment without one (a writer that died) is no part of the archive, and of two writers one is refused.
Each manifest names the digest of the one before it, so none can be exchanged or lost unseen.
"""

from __future__ import annotations

import hashlib
import re

import msgspec

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
"""The layout of new segments; all up to it are read."""
MANIFEST_LIMIT = 64 << 20
"""Bytes of a manifest: some hundreds, and some for each foreign record."""
_sha256 = re.compile(SHA256)


class SegmentManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Segment number `segment` (from 1). It holds `count` records at positions [first, last], without holes.

    name: of the object; bytes, sha256: of the object as stored; raw_bytes: of the records before compression.
    parent: sha256 of the JSON of the manifest before, empty for the first. layout: of the object. chain: over all
    events of the log up to `last` (storage/hash_chain.py, hex), before: up to `last - 1`; empty in an archive that was
    begun before manifests said so. With them a reader need not link every event anew. foreign: positions of the records
    that are no events, in order; None in a manifest of before there were any.

    Whoever wrote a manifest may have meant harm: `malformed_field` is asked before a name becomes a path.
    """

    segment: int
    first: int
    last: int
    count: int
    bytes: int
    raw_bytes: int
    sha256: str
    name: str
    parent: str
    layout: int = 1
    before: str = ""
    chain: str = ""
    foreign: tuple[int, ...] | None = None


class Closed(msgspec.Struct, frozen=True, kw_only=True):
    """A run has ended after `segments` segments, at position `last`. head: sha256 of the last manifest's JSON."""

    segments: int
    last: int
    head: str


def manifest_name(segment: int) -> str:
    """The name of a segment's manifest."""
    return f"{MANIFESTS}/{segment:08d}.json"


def segment_name(segment: int, sha256: str) -> str:
    """The name of a segment: with the digest, so that the remains of a dead writer are never in the way."""
    return f"segments/{segment:08d}-{sha256[:16]}.zst"


def to_json(manifest: SegmentManifest | Closed) -> bytes:
    """The stored bytes, whose digest `parent` and `head` hold."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def digest_of(stored: bytes) -> str:
    """Hex sha256."""
    return hashlib.sha256(stored).hexdigest()


class ManifestChain:
    """The manifests of an archive in order, checked while they are read."""

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
        """The last archived position, 0 for none."""
        return self.manifests[-1].last if self.manifests else 0

    def closed(self) -> bool:
        """Whether a run ended here and nothing came after. Raises ArchiveDamaged where segments are missing."""
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
                f"{where} speaks of {closed.segments} segments up to position {closed.last}, but there are "
                f"{len(self.manifests)}: restore {missing} and what follows from a copy"
            )
        if closed.segments == len(self.manifests) and closed.head != self.head:
            raise ArchiveDamaged(f"{where} was made for another last manifest: restore both from a copy")
        return closed.segments == len(self.manifests)

    def _add(self, name: str, stored: bytes) -> None:
        where, number = self._objects.locate(name), len(self.manifests) + 1
        if name != manifest_name(number):
            raise ArchiveDamaged(
                f"segment {number}, from position {self.last + 1}, has no manifest: the next one found is {where}. "
                f"Restore {self._objects.locate(manifest_name(number))} from a copy"
            )
        try:
            manifest = read_json(stored, SegmentManifest)
        except msgspec.DecodeError as error:
            raise ArchiveDamaged(f"{where} is damaged ({error}): restore it from a copy") from error
        if manifest.layout > LAYOUT:
            raise UnknownSchemaVersion(
                f"{where} speaks of a segment in layout {manifest.layout}, this version knows up to {LAYOUT}: upgrade"
            )
        if manifest.parent != self.head or manifest.segment != number:
            raise ArchiveDamaged(
                f"{where} does not follow the manifest before it (segment {number - 1}): one of them was changed. "
                "Restore both from a copy"
            )
        if manifest.first != self.last + 1 or manifest.count != manifest.last - manifest.first + 1:
            raise ArchiveDamaged(
                f"{where} holds {manifest.count} events at positions {manifest.first} to {manifest.last}, after "
                f"position {self.last}: there is a gap. Archive the log anew into an empty folder"
            )
        malformed = "name" if manifest.name in self._names else malformed_field(manifest)
        if malformed:
            raise ArchiveDamaged(
                f"{where}: {malformed} is not what it can be: the manifest was changed. Restore it from a copy"
            )
        self.manifests.append(manifest)
        self._names.add(manifest.name)
        self.head = digest_of(stored)


def malformed_field(manifest: SegmentManifest) -> str:
    """Return the name of a field that no segment of ours can have; "" where all are well-formed.

    A name is that of an object directly in the folder of segments; a digest has 64 hexadecimal digits; sizes have
    bounds; foreign records lie within the segment, in order.
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
        and list(foreign) == sorted({at for at in foreign if manifest.first <= at <= manifest.last}),
    }
    return next((name for name, is_well_formed in forms.items() if not is_well_formed), "")
