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
from storage.digests import TensorDigest, hashing, tensor_digests
from storage.folders.cache import HostCache
from storage.folders.places import is_remote, local_copy, local_path, parent_of
from storage.weights.delta_version import DeltaChain, link_rest
from storage.weights.files import is_delta, open_shard, write_shard
from storage.weights.manifest import StoredTensor, WeightManifest, read_manifest, write_index, write_manifest
from storage.weights.stored_version import beside, check_files, drop_copies, verify

log = logging.getLogger(__name__)
COPIES = "copies"
"""Name of the default root, in the folder of the versions. Copies of versions at a URL are in the cache of the host."""
SMALL_FILES = 1_000_000
"""Bytes of a copy besides its tensors: headers, manifest."""
KEPT = 3
"""Copies that stay: those that were used last. A copy that is in use stays besides."""


class WholeCopies:
    """Copies under `root`. None: beside the versions, or in this host's cache if they are at a URL.

    Methods raise WeightsDamaged if a version cannot be made, NoSpace, StoreUnavailable.
    """

    def __init__(self, root: Path | None = None) -> None:
        self._root = root

    @contextlib.contextmanager
    def hold(self, url: str | Path, digest: str | None = None) -> Iterator[Path]:
        """Yield a whole, verified folder of a stored version: itself, or a copy, which stays meanwhile.

        url: path or URL of the version. digest: the expected one. A damaged copy is made again.
        """
        # Between these steps nothing is held: a step that removes a damaged download waits for its readers.
        if not _is_delta(url):
            verify(url, digest)
            with local_copy(url) as folder:
                yield folder
            return
        place = _Place(self._root, str(url))
        with contextlib.ExitStack() as stack:
            copy, is_new = self._enter(stack, place)
            try:
                _check(copy, digest, is_new=is_new)
            except WeightsDamaged as error:
                if is_new:
                    raise
                log.warning("making the copy of weight version %s again: %s", place.name, error)
                stack.close()
                place.cache().drop(place.key(place.name))
                copy, _ = self._enter(stack, place)
                _check(copy, digest, is_new=True)
            yield copy

    def _enter(self, stack: contextlib.ExitStack, place: _Place) -> tuple[Path, bool]:
        """Return the copy, which stays while the stack is open, and whether it is new."""
        with local_copy(place.url) as stored:
            size, targets = _size(read_manifest(stored)), list[Path]()

        def make(target: Path) -> None:
            _make(place, target)
            targets.append(target)

        key = place.key(place.name)
        try:
            copy = stack.enter_context(place.cache(KEPT * size).copy(key, size, make))
        except NoSpace:  # others are in use
            copy = stack.enter_context(place.cache().copy(key, size, make))
        return copy, bool(targets)


class _Place:
    """Location of the copy of a version, and of those of the versions beside it. url: path or URL of the version."""

    def __init__(self, root: Path | None, url: str) -> None:
        self.url = url
        self._versions, self.name = parent_of(url)
        self._root = root or (None if is_remote(url) else local_path(url).parent / COPIES)

    def cache(self, limit: int | None = None) -> HostCache:
        """Return the cache of the copies. limit: its bytes, unless it is the host's cache, which has its own limit."""
        return HostCache.of_environment() if self._root is None else HostCache(self._root, limit)

    def key(self, name: str) -> str:
        """Return the key of a version's copy. The host's cache also has the stored folders, by their URLs."""
        return f"{self._versions}/{name}/whole" if self._root is None else name


def _make(place: _Place, target: Path) -> None:
    with contextlib.ExitStack() as held:
        stored, cache = beside(place.url, held), place.cache()
        folder = held.enter_context(local_copy(place.url))
        try:
            write_whole(DeltaChain.to(folder, lambda name: cache.find(place.key(name)) or stored(name)), target)
            return
        except WeightsDamaged as error:  # perhaps by a damaged copy
            log.warning("making weight version %s from stored versions alone: %s", place.name, error)
        _empty(target)
        try:
            write_whole(DeltaChain.to(folder, stored), target)
            return
        except WeightsDamaged:
            if not drop_copies(place.url):  # what was downloaded may have been damaged since
                raise
    with contextlib.ExitStack() as held:
        _empty(target)
        again = held.enter_context(local_copy(place.url))
        write_whole(DeltaChain.to(again, beside(place.url, held)), target)


def _is_delta(url: str | Path) -> bool:
    with local_copy(url) as folder:
        return is_delta(folder)


def _empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def _check(copy: Path, digest: str | None, *, is_new: bool) -> None:
    """Verify a copy. The tensors of one that was made now were compared with its manifest when they were written."""
    if not is_new:
        verify(copy, digest)
    elif digest not in (None, actual := read_manifest(copy).digest):
        raise WeightsDamaged(f"{copy} has weights {actual}, but {digest} was published: use its url")


def _size(manifest: WeightManifest) -> int:
    return manifest.bytes + SMALL_FILES


def write_whole(chain: DeltaChain, target: Path) -> WeightManifest:
    """Write a chain's version as a whole folder into `target`, an empty folder.

    Raises WeightsDamaged if the result is not what the version's manifest lists.
    """
    manifest = chain.manifest
    files = dict[str, list[str]]()
    for name, entry in manifest.tensors.items():
        files.setdefault(entry.file, []).append(name)
    for file, names in files.items():  # one file is in memory at a time
        tensors = dict(zip(names, hashing().map(chain.tensor, names), strict=True))
        _compare(write_shard(target / file, tensors, durable=False), manifest.tensors, manifest)
        del tensors
    link_rest(chain, target)
    check_files(target.joinpath, manifest)
    for file in {entry.file for entry in manifest.carried.values()}:
        _compare(tensor_digests(open_shard(target / file)), manifest.carried, manifest)
    stored = manifest.tensors | manifest.carried
    if len({entry.file for entry in stored.values()}) > 1:
        write_index(target, stored)
    write_manifest(target, manifest)
    return manifest


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

    A copy stays until `KEPT` others were used since. A URL stays: each host makes its own copy (`whole_copy`). Raises
    as `WholeCopies`.
    """
    if is_remote(url) or not is_delta(local_path(url)):
        return url
    with WholeCopies().hold(url) as whole:
        return str(whole)


@contextlib.contextmanager
def whole_copy(url: str | Path) -> Iterator[Path]:
    """Yield a folder by its path or URL on this host: a checkpoint as it is, or a verified copy of a delta.

    It stays there while inside. Raises as `WholeCopies`.
    """
    with WholeCopies().hold(url) if _is_delta(url) else local_copy(url) as folder:
        yield folder
