"""`BlobStore`: large payloads, each named by the sha256 of its bytes, on any fsspec URL."""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from schemas.arrays import BlobRef
from schemas.errors import BlobDamaged, BlobMissing
from storage.digests import SHA256
from storage.object_store import ObjectFolder

BLOB_LIMIT = 1 << 32
"""Bytes of a blob that is read: as many as the largest array of an event can have."""
_sha256 = re.compile(SHA256)


class BlobStore:
    """Write once, verified on read. `url`: a path, `file://`, `memory://`, `s3://`; `options` go to fsspec.

    A blob's name is `<first two hex digits>/<the other 62>`. It is durable when `put` returns.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self._objects = ObjectFolder(url, options)
        self.url = self._objects.url

    @property
    def is_local(self) -> bool:
        """Whether it is on a disk of this machine."""
        return self._objects.local is not None

    def put(self, data: bytes) -> BlobRef:
        """Keep `data`; the same bytes are kept once. Raises NoSpace, StoreUnavailable."""
        digest = hashlib.sha256(data).hexdigest()
        self._objects.create(_name(digest), data)
        return BlobRef(sha256=digest, size=len(data))

    def get(self, ref: BlobRef) -> bytes:
        """The bytes that `ref` names. Raises BlobMissing, BlobDamaged, StoreUnavailable."""
        where = self._objects.locate(_checked(ref))
        try:
            data = self._objects.read(_name(ref.sha256), ref.size)
        except FileNotFoundError:
            raise BlobMissing(f"no blob at {where}: is --blob-url the one the run was made with?") from None
        digest = hashlib.sha256(data).hexdigest()
        if digest != ref.sha256 or len(data) != ref.size:
            raise BlobDamaged(
                f"blob {where} holds {len(data)} bytes or more with sha256 {digest}, not the {ref.size} that name it: "
                "delete it and put a good copy there"
            )
        return data

    def has(self, ref: BlobRef) -> bool:
        """Whether it is there, unverified. Raises BlobDamaged for what cannot be the name of a blob."""
        return self._objects.exists(_checked(ref))


def _checked(ref: BlobRef) -> str:
    """The name of a blob that an event names: whoever wrote the event has chosen it."""
    if not _sha256.fullmatch(ref.sha256) or not 0 <= ref.size <= BLOB_LIMIT:
        raise BlobDamaged(
            f"{ref.sha256[:80]!r} with {ref.size} bytes names no blob: a digest has 64 hexadecimal digits"
        )
    return _name(ref.sha256)


def _name(digest: str) -> str:
    return f"{digest[:2]}/{digest[2:]}"
