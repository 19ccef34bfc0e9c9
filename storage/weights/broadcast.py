"""The agreement of the sender and the receivers of a weight version for a broadcast.

Both compute the buckets from the same manifest. The tensors of a bucket lie behind each other without gaps.
"""

from __future__ import annotations

from collections.abc import Iterator

from storage.weights.files import ITEM_BYTES
from storage.weights.manifest import StoredTensor, WeightManifest, tensor_bytes

BUCKET_BYTES = 512 * 1024 * 1024
"""Bytes of a bucket, as in slime. A larger tensor has a bucket of its own."""
LOOKUP = "manifest"
"""Key of the version's manifest in the store where the members of a group find each other."""


def group_name(epoch: int) -> str:
    """Return the name of an epoch's process group."""
    return f"weights-{epoch}"


def all_tensors(manifest: WeightManifest) -> dict[str, StoredTensor]:
    """Return the tensors that an engine loads: the trainer's, and those that the version carries unchanged."""
    return manifest.tensors | manifest.carried


def buckets(manifest: WeightManifest, most_bytes: int = BUCKET_BYTES) -> Iterator[list[str]]:
    """Yield the names of each bucket's tensors.

    Wider types come first, so that each tensor begins at a multiple of its item's size.
    """
    tensors = all_tensors(manifest)
    names, size = list[str](), 0
    for name in sorted(tensors, key=lambda name: (-ITEM_BYTES[tensors[name].dtype], name)):
        more = tensor_bytes(tensors[name])
        if names and size + more > most_bytes:
            yield names
            names, size = [], 0
        names.append(name)
        size += more
    if names:
        yield names
