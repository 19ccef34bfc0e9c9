"""`BlobStore`: large payloads named by the sha256 of their bytes, on any fsspec URL."""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from schemas.arrays import BlobRef
from schemas.errors import BlobDamaged, BlobMissing
from storage.digests import SHA256
from storage.object_store import ObjectFolder

BLOB_LIMIT = 1 << 32
"""Most bytes of a blob: the largest array of an event."""
_sha256 = re.compile(SHA256)


class BlobStore:
    """Blobs under `url` (a path, `file://`, `memory://`, `s3://`; `options` go to fsspec), verified when read.

    A blob's name is `<first two hex digits>/<the other 62>`. It is durable when `put` returns.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self._objects = ObjectFolder(url, options)
        self.url = self._objects.url

    @property
    def is_local(self) -> bool:
        """Whether the store is on a disk of this machine."""
        return self._objects.local is not None

    def put(self, data: bytes) -> BlobRef:
        """Store `data`; equal bytes are stored once. Raises NoSpace, StoreUnavailable."""
        digest = hashlib.sha256(data).hexdigest()
        self._objects.create(_name(digest), data)
        return BlobRef(sha256=digest, size=len(data))

    def get(self, ref: BlobRef) -> bytes:
        """Return the bytes that `ref` names. Raises BlobMissing, BlobDamaged, StoreUnavailable."""
        where = self._objects.locate(_checked(ref))
        try:
            data = self._objects.read(_name(ref.sha256), ref.size)
        except FileNotFoundError:
            raise BlobMissing(
                f"no blob at {where}: check that --blob-url is the URL with which the run was started"
            ) from None
        digest = hashlib.sha256(data).hexdigest()
        if digest != ref.sha256 or len(data) != ref.size:
            raise BlobDamaged(
                f"blob {where} has {len(data)} bytes or more with sha256 {digest} instead of {ref.size} bytes with the "
                "sha256 in its name: replace it with a good copy"
            )
        return data

    def has(self, ref: BlobRef) -> bool:
        """Return whether the blob exists, without verifying it. Raises BlobDamaged if `ref` cannot name a blob."""
        return self._objects.exists(_checked(ref))


def _checked(ref: BlobRef) -> str:
    """Return the name of a blob, after a check: the reference may come from an untrusted event."""
    if not _sha256.fullmatch(ref.sha256) or not 0 <= ref.size <= BLOB_LIMIT:
        raise BlobDamaged(
            f"{ref.sha256[:80]!r} with {ref.size} bytes does not name a blob: a digest has 64 hexadecimal digits"
        )
    return _name(ref.sha256)


def _name(digest: str) -> str:
    return f"{digest[:2]}/{digest[2:]}"
