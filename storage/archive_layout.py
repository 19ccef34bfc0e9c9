"""Which layout a segment lies in: its manifest says."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.errors import ArchiveDamaged
from storage import archive_layout_1, archive_segment
from storage.archive_manifest import SegmentManifest
from storage.archive_segment import Segment, SegmentRecord

_PACK = {1: archive_layout_1.pack_segment, 2: archive_segment.pack_segment}
_UNPACK = {1: archive_layout_1.unpack_segment, 2: archive_segment.unpack_segment}


def pack(manifest: SegmentManifest, records: Sequence[SegmentRecord]) -> bytes:
    """The object that `manifest` describes, made of its records again."""
    return _PACK[manifest.layout](records)


def unpack(manifest: SegmentManifest, data: bytes) -> Segment:
    """What is in the object. Raises ArchiveDamaged (without saying which segment: the caller knows)."""
    segment = _UNPACK[manifest.layout](manifest.first, data)
    if len(segment) != manifest.count:
        raise ArchiveDamaged(f"it ends at position {manifest.first + len(segment) - 1}")
    return segment
