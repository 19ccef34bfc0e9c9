"""`WholeCopies`: whole copies of weight versions that are stored as deltas, in a folder of this host.

A copy is made from the nearest whole version or copy before it and the deltas since, and compared with the version's
digest. It is a cache: everything in it can be made again. `HostCache` says how processes share it, and why one that is
killed leaves no half of a copy.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from schemas.errors import NoSpace, WeightsDamaged
from storage.digests import TensorDigest, tensor_digests
from storage.folders.cache import HostCache
from storage.folders.places import is_remote, local_path
from storage.weights.delta_version import DeltaChain, link_rest
from storage.weights.files import TensorView, is_delta, open_shard, write_shard
from storage.weights.manifest import StoredTensor, WeightManifest, read_manifest, write_index, write_manifest
from storage.weights.stored_version import check_files, verify

log = logging.getLogger(__name__)
COPIES = "copies"
"""Name of the default root, in the folder of the versions."""
SMALL_FILES = 1_000_000
"""Bytes of a copy besides its tensors: headers, manifest."""
KEPT = 3
"""Copies that stay: those that were used last. A copy that is in use stays besides."""


class WholeCopies:
    """Copies under `root`. Methods raise WeightsDamaged if a version cannot be made, NoSpace, StoreUnavailable."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @contextlib.contextmanager
    def hold(self, folder: Path, digest: str | None = None) -> Iterator[Path]:
        """Yield a whole, verified folder of a stored version: itself, or a copy, which stays meanwhile.

        digest: the expected digest of the version. A damaged copy is made again.
        """
        if not is_delta(folder):
            verify(folder, digest)
            yield folder
            return
        with contextlib.ExitStack() as stack:
            copy, is_new = self._enter(stack, folder)
            try:
                _check(copy, digest, is_new=is_new)
            except WeightsDamaged as error:
                if is_new:
                    raise
                log.warning("making the copy of weight version %s again: %s", folder.name, error)
                stack.close()
                HostCache(self._root).drop(folder.name)
                copy, _ = self._enter(stack, folder)
                _check(copy, digest, is_new=True)
            yield copy

    def adopt(self, draft: Path, manifest: WeightManifest, name: str) -> None:
        """Take a whole folder as the copy of the version whose stored folder has this name."""
        self._cache(manifest).adopt(name, draft, _size(manifest))

    def _enter(self, stack: contextlib.ExitStack, folder: Path) -> tuple[Path, bool]:
        """Return the copy, which stays while the stack is open, and whether it is new."""
        manifest, targets = read_manifest(folder), list[Path]()

        def make(target: Path) -> None:
            self._make(folder, target)
            targets.append(target)

        try:
            copy = stack.enter_context(self._cache(manifest).copy(folder.name, _size(manifest), make))
        except NoSpace:  # others are in use
            copy = stack.enter_context(HostCache(self._root).copy(folder.name, _size(manifest), make))
        return copy, bool(targets)

    def _make(self, folder: Path, target: Path) -> None:
        try:
            write_whole(DeltaChain.to(folder, HostCache(self._root).find), folder, target)
        except WeightsDamaged as error:  # perhaps by a damaged copy
            log.warning("making weight version %s from stored versions alone: %s", folder.name, error)
            shutil.rmtree(target)
            target.mkdir()
            write_whole(DeltaChain.to(folder), folder, target)

    def _cache(self, manifest: WeightManifest) -> HostCache:
        return HostCache(self._root, KEPT * _size(manifest))


def _check(copy: Path, digest: str | None, *, is_new: bool) -> None:
    """Verify a copy. The tensors of one that was made now were compared with its manifest when they were written."""
    if not is_new:
        verify(copy, digest)
    elif digest not in (None, actual := read_manifest(copy).digest):
        raise WeightsDamaged(f"{copy} has weights {actual}, but {digest} was published: use its url")


def _size(manifest: WeightManifest) -> int:
    return manifest.bytes + SMALL_FILES


def write_whole(chain: DeltaChain, folder: Path, target: Path) -> WeightManifest:
    """Write a chain's version, stored in `folder`, as a whole folder into `target`, an empty folder.

    Raises WeightsDamaged if the result is not what the version's manifest lists.
    """
    manifest = chain.manifest
    files = dict[str, dict[str, TensorView]]()
    for name, entry in sorted(manifest.tensors.items(), key=lambda item: item[1].file):
        if entry.file not in files:
            _write(target, files, manifest)
        files.setdefault(entry.file, {})[name] = chain.tensor(name)
    _write(target, files, manifest)
    link_rest(folder, target, manifest)
    check_files(target, manifest)
    for file in {entry.file for entry in manifest.carried.values()}:
        _compare(tensor_digests(open_shard(target / file)), manifest.carried, manifest)
    stored = manifest.tensors | manifest.carried
    if len({entry.file for entry in stored.values()}) > 1:
        write_index(target, stored)
    write_manifest(target, manifest)
    return manifest


def _write(target: Path, files: dict[str, dict[str, TensorView]], manifest: WeightManifest) -> None:
    """Write the one file that is complete, and forget it: a file of the whole version is in memory at a time."""
    for file, tensors in files.items():
        _compare(write_shard(target / file, tensors, durable=False), manifest.tensors, manifest)
    files.clear()


def _compare(digests: Mapping[str, TensorDigest], listed: Mapping[str, StoredTensor], manifest: WeightManifest) -> None:
    for name, digest in digests.items():
        entry = listed.get(name)
        if entry is None or (digest.dtype, digest.shape, digest.sha256) != (entry.dtype, entry.shape, entry.sha256):
            raise WeightsDamaged(
                f"tensor {name!r} of weight version {manifest.version} has sha256 {digest.sha256} after its deltas, "
                f"not {entry.sha256 if entry else 'any'}: restore the folders of its chain from a copy"
            )


def whole_folder(url: str) -> str:
    """Return the path or URL of a stored version, or of its verified copy beside the versions if it is a delta.

    A copy stays until `KEPT` others were used since. Raises as `WholeCopies`.
    """
    if is_remote(url) or not is_delta(folder := local_path(url)):
        return url
    with WholeCopies(folder.parent / COPIES).hold(folder) as whole:
        return str(whole)
