"""The agreement of the sender and the receivers of a weight version for a broadcast.

Both compute the buckets from the same manifest. The tensors of a bucket lie behind each other without gaps.
"""

from __future__ import annotations

from collections.abc import Iterator

from storage.weights.files import ITEM_BYTES
from storage.weights.manifest import StoredTensor, WeightManifest, tensor_bytes

BUCKET_BYTES = 512 * 1024 * 1024
"""Bytes of a bucket, as in slime. A larger tensor has a bucket of its own."""
STREAM_BYTES = 8 * 1024 * 1024
"""Bytes of a bucket over gloo: buckets are sent, checked and loaded at the same time."""
STREAM_DEPTH = 4
"""Buckets over gloo that are on their way or are checked at the same time."""
LOOKUP = "manifest"
"""Key of the version's manifest in the store where the members of a group find each other."""


def group_name(epoch: int) -> str:
    """Return the name of an epoch's process group."""
    return f"weights-{epoch}"


def all_tensors(manifest: WeightManifest) -> dict[str, StoredTensor]:
    """Return the tensors that an engine loads: the trainer's, and those that the version carries unchanged."""
    return manifest.tensors | manifest.carried


def bucket_bytes(backend: str) -> int:
    """Return the bytes of a bucket over one of torch's backends."""
    return STREAM_BYTES if backend == "gloo" else BUCKET_BYTES


def buckets(manifest: WeightManifest, most_bytes: int) -> Iterator[list[str]]:
    """Yield the names of each bucket's tensors.

    All of them are in the same file. Wider types come first, so that each tensor begins at a multiple of its item's
    size, and as in our files, so that a bucket is a part of its file.
    """
    tensors = all_tensors(manifest)
    names, size, file = list[str](), 0, ""
    for name in sorted(tensors, key=lambda name: (tensors[name].file, -ITEM_BYTES[tensors[name].dtype], name)):
        more = tensor_bytes(tensors[name])
        if names and (size + more > most_bytes or tensors[name].file != file):
            yield names
            names, size = [], 0
        names.append(name)
        size, file = size + more, tensors[name].file
    if names:
        yield names
