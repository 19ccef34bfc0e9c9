"""`Snapshot`: a process's tensors of the version that it wrote last, in memory: from them it makes the next delta.

    version 11 written in full   -> the snapshot has its bytes
    version 12                   -> each tensor: new bytes, digest, delta from the snapshot; then the snapshot has them
                                    only the deltas are written

A process without the snapshot of the parent, because it has just started, reads the parent's stored files instead.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from pathlib import Path
from typing import Annotated, NamedTuple

from schemas.doc import doc
from schemas.errors import NoSpace, WeightsDamaged
from storage.digests import TensorDigest, hashing, weights_digest
from storage.object_store import file_errors
from storage.weights.delta import checksum, encode
from storage.weights.delta_rule import DeltaRule
from storage.weights.files import TensorView, view, write_shard
from storage.weights.manifest import WeightManifest
from storage.weights.shards import Shard, TensorBytes, split, write_shards
from storage.weights.stored_version import opened

log = logging.getLogger(__name__)


class DeltaBase(NamedTuple):
    """The stored version that a delta changes."""

    version: int
    digest: str
    url: Annotated[str, doc("Path or URL of its folder.")]


class DeltaPlan(NamedTuple):
    """Rule by which processes write a version if versions may be deltas. base: None for a full version."""

    rule: DeltaRule
    base: DeltaBase | None


class _Change(NamedTuple):
    digest: TensorDigest
    frame: bytes | None
    checksum: str = ""


class Snapshot:
    """See the module. digest: of the whole version, of which this process may have a share; empty: of none."""

    def __init__(self) -> None:
        self.digest = ""
        self._bytes = dict[str, bytearray]()
        self._digests = dict[str, TensorDigest]()

    def keeping(self, tensors: Iterable[TensorBytes]) -> Iterator[TensorBytes]:
        """Yield the tensors of a full version, and keep their bytes."""
        self.digest = ""
        for name, dtype, shape, data in tensors:
            self._keep(name, view(name, dtype, shape, data))
            yield name, dtype, shape, data

    def settle(self, digests: Mapping[str, TensorDigest], mine: Collection[str]) -> None:
        """Set the digests of the whole version. mine: the tensors of this process."""
        for gone in self._bytes.keys() - set(mine):
            del self._bytes[gone]
        self._digests, self.digest = dict(digests), weights_digest(digests)

    def advance(self, name: str, tensor: TensorView, rule: DeltaRule, stored: _Stored | None) -> _Change:
        """Return the change of a tensor, and keep its new bytes. stored: the parent, if the snapshot is not of it.

        Raises WeightsDamaged if the parent's tensor is damaged, or was another process's.
        """
        digest = TensorDigest.of(*tensor)
        before, old = self._before(name) if stored is None else stored.tensor(name)
        if digest == before:
            if stored is not None:
                self._keep(name, tensor)
            return _Change(digest, None)
        fits = before is not None and (before.dtype, before.shape) == (digest.dtype, digest.shape)
        frame = encode(rule.encoding, old if fits else None, tensor.data)
        self._keep(name, tensor)
        return _Change(digest, frame, checksum(rule.checksum, tensor.data))

    def _before(self, name: str) -> tuple[TensorDigest | None, memoryview]:
        before = self._digests.get(name)
        if before is not None and name not in self._bytes:
            raise WeightsDamaged(f"tensor {name!r} was written by another process")
        return before, memoryview(self._bytes.get(name, b""))

    def _keep(self, name: str, tensor: TensorView) -> None:
        kept = self._bytes.get(name)
        if kept is not None and len(kept) == tensor.data.nbytes:
            kept[:] = tensor.data
        else:
            self._bytes[name] = bytearray(tensor.data)


class _Stored:
    """The tensors of a stored version. Raises WeightsDamaged where one does not have its digest."""

    def __init__(self, manifest: WeightManifest, tensors: Mapping[str, TensorView]) -> None:
        self._manifest, self._tensors = manifest, tensors

    def tensor(self, name: str) -> tuple[TensorDigest | None, memoryview]:
        entry = self._manifest.tensors.get(name)
        if entry is None:
            return None, memoryview(b"")
        listed, stored = TensorDigest(entry.dtype, entry.shape, entry.sha256), self._tensors.get(name)
        if stored is None or TensorDigest.of(*stored) != listed:
            raise WeightsDamaged(f"tensor {name!r} of weight version {self._manifest.version} is damaged")
        return listed, memoryview(stored.data)


class VersionWriter:
    """Writes the share of a version that one process has, in full or as a delta.

    prefix: of its files. gather: returns the values of all writing processes, in each of them; each calls it equally
    often.
    """

    def __init__(
        self,
        prefix: str = "shard",
        gather: Callable[[list[Shard] | None], Sequence[list[Shard] | None]] = lambda mine: [mine],
    ) -> None:
        self._prefix, self._gather = prefix, gather
        self._snapshot = Snapshot()

    def write(
        self,
        folder: Path,
        share: Callable[[], Iterable[TensorBytes]],
        *,
        max_bytes: int,
        durable: bool,
        deltas: DeltaPlan | None = None,
    ) -> list[Shard]:
        """Write to the folder of a draft; return the files of all processes.

        share: returns the tensors, again if it is called again: a delta whose parent is damaged in one process is
        written in full by all. deltas: None if no version of the run is a delta. Raises as `write_shards`.
        """
        if deltas is not None and deltas.base is not None:
            shards = self._joined(self._write_changes(folder, share(), deltas.rule, deltas.base, max_bytes, durable))
            if shards is not None:
                return shards
            for left in folder.glob(f"{self._prefix}-*"):
                left.unlink()
        tensors = share() if deltas is None else self._snapshot.keeping(share())
        mine = write_shards(folder, self._prefix, tensors, max_bytes=max_bytes, durable=durable)
        shards = self._joined(mine, keeps=deltas is not None)
        assert shards is not None, "a full version needs no other one"
        return shards

    def _joined(self, mine: list[Shard] | None, *, keeps: bool = True) -> list[Shard] | None:
        """Return the files of all processes; None if one of them cannot write a delta."""
        shards = list[Shard]()
        for part in self._gather(mine):
            if part is None:
                return None
            shards += part
        if keeps and mine is not None:
            self._snapshot.settle(_digests(shards), _digests(mine))
        return shards

    def _write_changes(
        self, folder: Path, tensors: Iterable[TensorBytes], rule: DeltaRule, base: DeltaBase, size: int, durable: bool
    ) -> list[Shard] | None:
        """Write the changes from the base, in a file for each file of the full version; None if the base is damaged."""
        written, snapshot, rest = list[Shard](), self._snapshot, iter(tensors)
        with contextlib.ExitStack() as held, file_errors(str(folder)):
            try:
                stored = None if snapshot.digest == base.digest else _read(held, base)
                snapshot.digest = ""
                for part in split(rest, size):
                    begun = [
                        (name, hashing().submit(snapshot.advance, name, tensor, rule, stored))
                        for name, tensor in part.items()
                    ]
                    wait([future for _, future in begun])  # none may change the snapshot after an error
                    changes = {name: future.result() for name, future in begun}
                    written.append(_write_part(folder, f"{self._prefix}-{len(written)}", changes, durable=durable))
                    del part  # or it is held until the next one is complete
            except WeightsDamaged as error:
                log.warning("storing the version after %d in full: %s", base.version, error)
                snapshot.digest = ""
                for _ in rest:  # other processes may take part in each tensor
                    pass
                return None
        return written


def _read(held: contextlib.ExitStack, base: DeltaBase) -> _Stored:
    try:
        version = held.enter_context(opened(base.url))
    except NoSpace as error:  # for a copy of it on this host
        raise WeightsDamaged(f"it cannot be read: {error}") from error
    if version.manifest.digest != base.digest:
        raise WeightsDamaged(f"{base.url} has weights {version.manifest.digest}, not {base.digest}")
    return _Stored(version.manifest, version.tensors)


def _write_part(folder: Path, file: str, changes: Mapping[str, _Change], *, durable: bool) -> Shard:
    frames = {
        name: TensorView("U8", (len(change.frame),), memoryview(change.frame))
        for name, change in changes.items()
        if change.frame is not None
    }
    if frames:
        sums = {name: changes[name].checksum for name in frames}
        write_shard(folder / file, frames, durable=durable, metadata=sums)
    return Shard(file, {name: change.digest for name, change in changes.items()}, tuple(frames))


def _digests(shards: Iterable[Shard]) -> dict[str, TensorDigest]:
    return {name: digest for shard in shards for name, digest in shard.digests.items()}
