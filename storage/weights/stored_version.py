"""Read and verify stored weight versions, in full or as deltas, by their path or URL."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from schemas.errors import WeightsDamaged
from storage.digests import TensorDigest, tensor_digests, weights_digest
from storage.folders.places import drop_copy, local_copy
from storage.weights.base_files import MANIFEST
from storage.weights.delta_version import open_version
from storage.weights.files import TensorView, open_checkpoint, view
from storage.weights.manifest import WeightManifest, read_manifest
from storage.weights.shards import TensorBytes


def digest_of(tensors: Iterable[TensorBytes]) -> str:
    """Return the digest of a version with these tensors, without storing it."""
    return weights_digest(tensor_digests((name, view(name, *tensor)) for name, *tensor in tensors))


def read(folder: str | Path) -> tuple[WeightManifest, dict[str, TensorView]]:
    """Return a version's manifest and the trainer's tensors, mapped (in memory if they are deltas) and unverified.

    folder: path or URL. What is downloaded from a URL stays mapped if this host's copy is removed.
    """
    with local_copy(folder) as root:
        manifest = read_manifest(root)
        tensors = open_version(root)
    return manifest, {name: tensor for name, tensor in tensors.items() if name not in manifest.carried}


def trained_tensors(folder: str | Path) -> dict[str, TensorView]:
    """Return the trainer's tensors of a version, or all of a Hugging Face folder, mapped and unverified."""
    with local_copy(folder) as root:
        return read(root)[1] if (root / MANIFEST).is_file() else open_checkpoint(root)


def verify(folder: str | Path, digest: str | None = None) -> WeightManifest:
    """Check every byte of a version against its manifest, and the manifest against `digest` (`weights.published`).

    If a copy of this host is damaged, it is downloaded once more. Raises WeightsDamaged naming the tensor or file.
    """
    try:
        with local_copy(folder) as root:
            return _verify(root, digest)
    except WeightsDamaged:
        if not drop_copy(folder):
            raise
    with local_copy(folder) as root:
        return _verify(root, digest)


def _verify(root: Path, digest: str | None) -> WeightManifest:
    manifest, tensors = read_manifest(root), open_version(root)
    if digest is not None and manifest.digest != digest:
        raise WeightsDamaged(f"{root} has weights {manifest.digest}, but {digest} was published: use its url")
    listed = manifest.tensors | manifest.carried
    if missing := listed.keys() ^ tensors.keys():
        raise WeightsDamaged(f"{root}: tensor {min(missing)!r} is only in one of files and manifest")
    for name, actual in tensor_digests(tensors.items()).items():
        stored = listed[name]
        if actual != TensorDigest(stored.dtype, stored.shape, stored.sha256):
            raise WeightsDamaged(
                f"tensor {name!r} in {root / stored.file} is {actual.dtype} {list(actual.shape)} with sha256 "
                f"{actual.sha256}, not {stored.dtype} {list(stored.shape)} with {stored.sha256} as in its manifest: "
                "restore it from a copy"
            )
    check_files(root, manifest)
    return manifest


def check_files(root: Path, manifest: WeightManifest) -> None:
    """Compare a version's config and tokenizer files with its manifest. Raises WeightsDamaged."""
    for name, sha256 in manifest.files.items():
        path = root / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
            raise WeightsDamaged(f"{path} is missing or was changed: restore it from a copy")
