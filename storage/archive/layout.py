"""Which layout a segment lies in: its manifest says."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.errors import ArchiveDamaged
from storage.archive import layout_v1, segment
from storage.archive.manifest import SegmentManifest
from storage.archive.segment import Segment, SegmentRecord

_PACK = {1: layout_v1.pack_segment, 2: segment.pack_segment}
_UNPACK = {1: layout_v1.unpack_segment, 2: segment.unpack_segment}


def pack(manifest: SegmentManifest, records: Sequence[SegmentRecord]) -> bytes:
    """The object that `manifest` describes, made of its records again."""
    return _PACK[manifest.layout](records)


def unpack(manifest: SegmentManifest, data: bytes) -> Segment:
    """What is in the object. Raises ArchiveDamaged (without saying which segment: the caller knows)."""
    unpacked = _UNPACK[manifest.layout](manifest.first, data)
    if len(unpacked) != manifest.count:
        raise ArchiveDamaged(f"it ends at position {manifest.first + len(unpacked) - 1}")
    return unpacked
