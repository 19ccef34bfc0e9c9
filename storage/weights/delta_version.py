"""Weight versions that are stored as the changes from another version, their base, in slime's format.

    v000012-<digest>/   manifest.json                  of the whole version, as if it were stored in full
                        model.safetensors.index.json   slime's metadata, and the file of each delta
                        delta-00001-of-00002.safetensors   a U8 tensor for each changed tensor, its zstd frame, and in
                                                       the metadata the checksum of the tensor's new bytes
                        links to config, tokenizer and the tensors that no version changes

The base may be a delta itself: `DeltaChain` goes back to a version that is stored in full.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec

from schemas.doc import doc
from schemas.errors import WeightsDamaged
from schemas.outside_json import read_json
from storage.digests import TensorDigest, hashing
from storage.folders.places import is_remote, local_path
from storage.object_store import fsync
from storage.weights.base_files import MANIFEST
from storage.weights.delta import COMPRESSION, apply, checksum, encode
from storage.weights.delta_rule import DeltaChecksum, DeltaEncoding, DeltaRule
from storage.weights.files import (
    INDEX,
    TensorView,
    is_delta,
    is_name,
    open_checkpoint,
    open_shard,
    shard_metadata,
)
from storage.weights.manifest import StoredTensor, WeightManifest, read_manifest, tensor_bytes, write_manifest
from storage.weights.shards import SHARD_BYTES, TensorBytes, write_shards

AT_ONCE = 2 * (os.cpu_count() or 1)
"""Tensors that are encoded or wait for their file."""


class DeltaMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata of a delta's index: slime's, and the base's identity."""

    version: str
    base_version: Annotated[str, doc("Version that the delta changes, six digits.")]
    base_digest: Annotated[str, doc("Digest of that version.")]
    base_folder: Annotated[str, doc("Name of its folder, beside this one.")]
    delta_encoding: DeltaEncoding
    compression_format: str
    checksum_format: DeltaChecksum


class _DeltaIndex(msgspec.Struct, frozen=True):
    metadata: DeltaMetadata
    weight_map: dict[str, str]


def base_of(folder: Path) -> int | None:
    """Return the version that a stored delta changes; None for a version that is stored in full."""
    if not is_delta(folder):
        return None
    try:
        return int(read_json((folder / INDEX).read_bytes(), _DeltaIndex).metadata.base_version)
    except (msgspec.DecodeError, ValueError, FileNotFoundError):
        return None  # damaged, so nobody can use it


def delta_bytes(url: str) -> int | None:
    """Return the size of a stored delta's own files; None for a version that is stored in full."""
    if is_remote(url) or not is_delta(folder := local_path(url)):
        return None
    return sum(path.stat().st_size for path in folder.glob("delta-*.safetensors"))


@dataclass(frozen=True, slots=True)
class DeltaVersion:
    """A stored delta. Raises WeightsDamaged where it does not fit itself."""

    folder: Path
    manifest: WeightManifest
    metadata: DeltaMetadata
    frames: Annotated[Mapping[str, TensorView], doc("Frames of the changed tensors.")]
    checksums: Annotated[Mapping[str, str], doc("Checksums of their new bytes, in hex.")]

    @classmethod
    def open(cls, folder: Path) -> DeltaVersion:
        """Open a delta. Raises WeightsDamaged."""
        manifest = read_manifest(folder)
        try:
            index = read_json((folder / INDEX).read_bytes(), _DeltaIndex)
        except (FileNotFoundError, msgspec.DecodeError) as error:
            raise WeightsDamaged(f"{folder / INDEX} is damaged ({error}): restore it from a copy") from error
        metadata, files = index.metadata, sorted(set(index.weight_map.values()))
        if outside := [name for name in (*files, metadata.base_folder) if not is_name(name)]:
            raise WeightsDamaged(f"{folder / INDEX} names {outside[0]!r}, which is not a name beside it")
        if metadata.compression_format != COMPRESSION:
            raise WeightsDamaged(f"{folder} is compressed by {metadata.compression_format!r}, not by {COMPRESSION}")
        if not metadata.base_version.isdecimal() or int(metadata.base_version) >= manifest.version:
            raise WeightsDamaged(f"{folder} changes version {metadata.base_version!r}, which is not an earlier one")
        frames = {name: frame for file in files for name, frame in open_shard(folder / file)}
        sums = {name: text for file in files for name, text in shard_metadata(folder / file).items()}
        missing = (frames.keys() ^ index.weight_map.keys()) | (frames.keys() - (manifest.tensors.keys() & sums.keys()))
        if missing:
            raise WeightsDamaged(
                f"{folder}: the delta of tensor {min(missing)!r} is incomplete: restore it from a copy"
            )
        return cls(folder, manifest, metadata, frames, sums)

    def apply(self, name: str, memory: bytearray) -> None:
        """Turn a tensor's bytes in the base into those of this version. Raises WeightsDamaged."""
        where = f"the delta of tensor {name!r} in {self.folder}"
        try:
            apply(self.metadata.delta_encoding, self.frames[name].data, memory)
        except WeightsDamaged as error:
            raise WeightsDamaged(f"{where} is damaged, {error}: restore it from a copy") from error
        if checksum(self.metadata.checksum_format, memory) != self.checksums[name]:
            raise WeightsDamaged(
                f"{where} and version {self.metadata.base_version} do not give the tensor's checksum: restore both "
                "folders from a copy"
            )


class DeltaChain:
    """A version as the nearest whole version before it, and the deltas since.

    whole: folder of that version; deltas: the later versions, ascending.
    """

    def __init__(self, whole: Path, deltas: list[DeltaVersion]) -> None:
        self._deltas, self._first = deltas, read_manifest(whole)
        self._tensors = open_checkpoint(whole)
        expected = deltas[0].metadata.base_digest if deltas else self._first.digest
        for manifest, digest in ((self._first, expected), *_links(deltas)):
            if manifest.digest != digest:
                raise WeightsDamaged(
                    f"the base of a delta has weights {manifest.digest}, not {digest}: restore {whole.parent} from a "
                    "copy"
                )

    @classmethod
    def to(cls, folder: Path, copies: Callable[[str], Path | None] = lambda name: None) -> DeltaChain:
        """Find the chain of a stored version. copies: returns a whole copy of a version by its folder's name.

        Raises WeightsDamaged, also if a version of the chain is missing.
        """
        deltas, at = list[DeltaVersion](), folder
        while is_delta(at):
            deltas.append(delta := DeltaVersion.open(at))
            name = delta.metadata.base_folder
            at = copies(name) or at.parent / name
            if not at.is_dir():
                raise WeightsDamaged(f"{folder} is a delta that needs {at}, which is missing: restore it from a copy")
            if len(deltas) > 1 and deltas[-2].manifest.version <= delta.manifest.version:
                raise WeightsDamaged(f"{folder} is a delta of a later version, {delta.folder}: restore it from a copy")
        return cls(at, deltas[::-1])

    @property
    def manifest(self) -> WeightManifest:
        """Manifest of the version."""
        return self._deltas[-1].manifest if self._deltas else self._first

    def names(self) -> list[str]:
        """Return the names of all tensors."""
        return sorted((*self.manifest.tensors, *self.manifest.carried))

    def tensor(self, name: str) -> TensorView:
        """Return a tensor of the version: mapped if no delta changed it, else in memory. Raises WeightsDamaged."""
        if name in self.manifest.carried and self._deltas:
            return self._carried(name)
        mapped, before = self._tensors.get(name), self._first.tensors.get(name)
        data: memoryview | bytearray | None = mapped.data if mapped is not None else None
        for delta in self._deltas:
            entry = delta.manifest.tensors.get(name)
            if entry is None:
                data = None
            elif name in delta.frames:
                if data is None or not _fits(entry, before):
                    data = _zeros(delta.folder, name, entry)
                elif not isinstance(data, bytearray):
                    data = bytearray(data)
                delta.apply(name, data)
            elif _key(entry) != _key(before):
                raise WeightsDamaged(f"{delta.folder} lacks the delta of tensor {name!r}: restore it from a copy")
            before = entry
        if before is None or data is None:
            raise WeightsDamaged(f"tensor {name!r} is in no file of version {self.manifest.version}")
        if mapped is not None and not isinstance(data, bytearray):
            return mapped
        return TensorView(before.dtype, before.shape, memoryview(data))

    def _carried(self, name: str) -> TensorView:
        path = self._deltas[-1].folder / self.manifest.carried[name].file
        tensors = dict(open_shard(path))
        if name not in tensors:
            raise WeightsDamaged(f"tensor {name!r} is missing in {path}: restore it from a copy")
        return tensors[name]


class ChainTensors(Mapping[str, TensorView]):
    """All tensors of a chain's version by name, each made when it is read."""

    def __init__(self, chain: DeltaChain) -> None:
        self._chain, self._names = chain, chain.names()

    def __getitem__(self, name: str) -> TensorView:
        return self._chain.tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def open_version(root: Path) -> Mapping[str, TensorView]:
    """Return all tensors of a stored version: mapped, or made from its deltas when they are read."""
    return ChainTensors(DeltaChain.to(root)) if is_delta(root) else open_checkpoint(root)


def write_delta(target: Path, draft: Path, base: Path, base_name: str, rule: DeltaRule, *, durable: bool) -> None:
    """Write the delta from a whole base to a whole version `draft` into the folder `target`.

    base_name: name of the base's stored folder. Raises WeightsDamaged for a base that differs from its manifest in
    size, NoSpace, StoreUnavailable.
    """
    manifest, before = read_manifest(draft), read_manifest(base)
    sums = dict[str, str]()
    frames = _frames(open_checkpoint(draft), manifest, open_checkpoint(base), before, rule, sums)
    shards = write_shards(target, "delta", frames, max_bytes=SHARD_BYTES, durable=durable, metadata=sums)
    weight_map = dict[str, str]()
    for number, shard in enumerate(shards, 1):
        file = f"delta-{number:05d}-of-{len(shards):05d}.safetensors"
        (target / shard.file).rename(target / file)
        weight_map |= dict.fromkeys(shard.digests, file)
    metadata = DeltaMetadata(
        version=f"{manifest.version:06d}",
        base_version=f"{before.version:06d}",
        base_digest=before.digest,
        base_folder=base_name,
        delta_encoding=rule.encoding,
        compression_format=COMPRESSION,
        checksum_format=rule.checksum,
    )
    index = msgspec.json.encode(_DeltaIndex(metadata, dict(sorted(weight_map.items()))))
    (target / INDEX).write_bytes(msgspec.json.format(index, indent=2))
    link_rest(draft, target, manifest)
    written = target / INDEX, write_manifest(target, manifest)
    for path in written if durable else ():
        fsync(path)


def link_rest(source: Path, target: Path, manifest: WeightManifest) -> None:
    """Link a version's files that no step changes: config, tokenizer, carried tensors."""
    for name in {*manifest.files, *(tensor.file for tensor in manifest.carried.values())} - {MANIFEST, INDEX}:
        try:
            os.link(source / name, target / name)
        except FileExistsError:
            pass
        except FileNotFoundError:
            raise WeightsDamaged(f"{source / name} is missing: restore it from a copy") from None
        except OSError:  # another file system, or one without hard links
            shutil.copyfile(source / name, target / name)


def _frames(
    after: Mapping[str, TensorView],
    manifest: WeightManifest,
    old: Mapping[str, TensorView],
    before: WeightManifest,
    rule: DeltaRule,
    sums: dict[str, str],
) -> Iterator[TensorBytes]:
    """Yield the frames of changed tensors, encoded by all cores, and put the checksums of the new bytes into `sums`."""
    waiting = deque[tuple[str, Future[tuple[bytes, str]]]]()

    def done() -> TensorBytes:
        name, future = waiting.popleft()
        frame, sums[name] = future.result()
        return name, "U8", (len(frame),), frame

    for name, entry in manifest.tensors.items():
        earlier = before.tensors.get(name)
        if _key(entry) == _key(earlier):
            continue
        base = old[name].data if _fits(entry, earlier) else None
        waiting.append((name, hashing().submit(partial(_encoded, rule, base, after[name].data))))
        if len(waiting) > AT_ONCE:
            yield done()
    while waiting:
        yield done()


def _encoded(rule: DeltaRule, old: memoryview | None, new: memoryview) -> tuple[bytes, str]:
    return encode(rule.encoding, old, new), checksum(rule.checksum, new)


def _links(deltas: list[DeltaVersion]) -> Iterator[tuple[WeightManifest, str]]:
    for earlier, later in itertools.pairwise(deltas):
        yield earlier.manifest, later.metadata.base_digest


def _key(entry: TensorDigest | None) -> tuple[str, tuple[int, ...], str] | None:
    return None if entry is None else (entry.dtype, entry.shape, entry.sha256)


def _fits(entry: StoredTensor, before: StoredTensor | None) -> bool:
    """Return whether a tensor's delta changes the base's bytes; else it changes zeros."""
    return before is not None and (entry.dtype, entry.shape) == (before.dtype, before.shape)


def _zeros(folder: Path, name: str, entry: StoredTensor) -> bytearray:
    try:
        return bytearray(tensor_bytes(entry))
    except (KeyError, MemoryError, OverflowError, ValueError):
        raise WeightsDamaged(
            f"tensor {name!r} in {folder} has {list(entry.shape)}, more than the memory here"
        ) from None
