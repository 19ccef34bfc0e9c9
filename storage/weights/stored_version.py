"""Read and verify stored weight versions, in full or as deltas, by their path or URL."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from schemas.doc import doc
from schemas.errors import WeightsDamaged
from storage.digests import TensorDigest, tensor_digests, weights_digest
from storage.folders.places import drop_copy, is_remote, local_copy, parent_of
from storage.weights.base_files import MANIFEST
from storage.weights.delta_version import ChainTensors, DeltaChain, Find, base_of
from storage.weights.files import TensorView, is_delta, open_checkpoint, view
from storage.weights.manifest import WeightManifest, read_manifest
from storage.weights.shards import TensorBytes


def digest_of(tensors: Iterable[TensorBytes]) -> str:
    """Return the digest of a version with these tensors, without storing it."""
    return weights_digest(tensor_digests((name, view(name, *tensor)) for name, *tensor in tensors))


@dataclass(frozen=True, slots=True)
class OpenVersion:
    """A stored version on this host, unverified."""

    root: Annotated[Path, doc("Its folder.")]
    manifest: WeightManifest
    tensors: Annotated[Mapping[str, TensorView], doc("Mapped, or made from its deltas when they are read.")]
    file: Annotated[Callable[[str], Path], doc("Returns a file that no step changes, such as the config, by its name.")]


@contextmanager
def opened(url: str | Path) -> Iterator[OpenVersion]:
    """Open a version by its path or URL, with the versions that it needs if it is a delta.

    Raises WeightsDamaged, StoreUnavailable, NoSpace.
    """
    with ExitStack() as held:
        root = held.enter_context(local_copy(url))
        manifest = read_manifest(root)
        if is_delta(root):
            chain = DeltaChain.to(root, beside(url, held))
            yield OpenVersion(root, manifest, ChainTensors(chain), chain.file)
        else:
            yield OpenVersion(root, manifest, open_checkpoint(root), root.joinpath)


def beside(url: str | Path, held: ExitStack) -> Find:
    """Return what finds the versions beside one: downloads those at a URL, which stay on this host while `held` is
    open.
    """
    place, _ = parent_of(str(url))
    if is_remote(place):
        return lambda name: held.enter_context(local_copy(f"{place}/{name}"))
    with local_copy(url) as root:
        return root.parent.joinpath


def read(folder: str | Path) -> tuple[WeightManifest, dict[str, TensorView]]:
    """Return a version's manifest and the trainer's tensors, mapped (in memory if they are deltas) and unverified.

    folder: path or URL. What is downloaded from a URL stays mapped if this host's copy is removed.
    """
    with opened(folder) as version:
        tensors, carried = version.tensors, version.manifest.carried
        return version.manifest, {name: tensor for name, tensor in tensors.items() if name not in carried}


def trained_tensors(folder: str | Path) -> dict[str, TensorView]:
    """Return the trainer's tensors of a version, or all of a Hugging Face folder, mapped and unverified."""
    with local_copy(folder) as root:
        return read(folder)[1] if (root / MANIFEST).is_file() else open_checkpoint(root)


def verify(folder: str | Path, digest: str | None = None) -> WeightManifest:
    """Check every byte of a version against its manifest, and the manifest against `digest` (`weights.published`).

    If a copy of this host is damaged, it is downloaded once more. Raises WeightsDamaged naming the tensor or file.
    """
    try:
        with opened(folder) as version:
            return _verify(version, digest)
    except WeightsDamaged:
        if not drop_copies(folder):
            raise
    with opened(folder) as version:
        return _verify(version, digest)


def drop_copies(url: str | Path) -> bool:
    """Remove this host's copies of a version and of those that it needs; return False if it has none."""
    at, dropped = str(url), set[str]()
    while is_remote(at) and at not in dropped:
        dropped.add(at)
        drop_copy(at)
        place, _ = parent_of(at)
        base = base_of(at)
        at = f"{place}/{base}" if base else ""
    return bool(dropped)


def _verify(version: OpenVersion, digest: str | None) -> WeightManifest:
    root, manifest, tensors = version.root, version.manifest, version.tensors
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
    check_files(version.file, manifest)
    return manifest


def check_files(file: Callable[[str], Path], manifest: WeightManifest) -> None:
    """Compare a version's config and tokenizer files with its manifest. file: finds them. Raises WeightsDamaged."""
    for name, sha256 in manifest.files.items():
        path = file(name)
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
            raise WeightsDamaged(f"{path} is missing or was changed: restore it from a copy")
