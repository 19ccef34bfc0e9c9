"""`DeltaRule`: which weight versions are stored as deltas, and how. Settings use it, so it imports nothing large."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated

from schemas.doc import doc

OVERWRITE_LIMIT = 2**32
"""Bytes of a tensor that an `overwrite` delta cannot express any more, because its positions are u4."""


class DeltaEncoding(enum.StrEnum):
    """Content of a tensor's delta before compression."""

    XOR = "xor"
    OVERWRITE = "overwrite"


class DeltaChecksum(enum.StrEnum):
    """Checksum of a tensor's new bytes, which a delta carries."""

    XXH3 = "xxh3-128"
    ADLER32 = "adler32"


@dataclass(frozen=True, slots=True)
class DeltaRule:
    """Which weight versions are stored as deltas, and how."""

    full_every: Annotated[int, doc("Versions that are multiples of this are stored in full.")]
    encoding: DeltaEncoding = DeltaEncoding.XOR
    checksum: DeltaChecksum = DeltaChecksum.XXH3

    def stores(self, version: int, largest: int) -> bool:
        """Return whether a version is stored as a delta. largest: bytes of its largest tensor."""
        too_large = self.encoding is DeltaEncoding.OVERWRITE and largest >= OVERWRITE_LIMIT
        return version % self.full_every != 0 and not too_large
