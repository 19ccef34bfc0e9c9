"""Weight versions that are stored as the changes from another version, their base, in slime's format.

    v000012-<digest>/   manifest.json                  of the whole version, as if it were stored in full
                        model.safetensors.index.json   slime's metadata, and the file of each delta
                        delta-00001-of-00002.safetensors   a U8 tensor for each changed tensor, its zstd frame, and in
                                                       the metadata the checksum of the tensor's new bytes
                        links to config, tokenizer and the tensors that no version changes; in an object store a
                        delta has only those that its base has not

The base may be a delta itself: `DeltaChain` goes back to a version that is stored in full.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from schemas.doc import doc
from schemas.errors import WeightsDamaged
from schemas.outside_json import read_json
from storage.digests import TensorDigest
from storage.folders.places import is_remote, local_path, parent_of
from storage.folders.remote import RemoteFolders
from storage.weights.base_files import MANIFEST
from storage.weights.delta import COMPRESSION, apply, checksum
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
from storage.weights.manifest import StoredTensor, WeightManifest, read_manifest, tensor_bytes

Find = Callable[[str], Path]
"""Returns the folder of a version on this host by the name under which it is stored. It may not exist."""


DELTA = "delta-"
"""Beginning of the names of a delta's own files."""


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


def base_of(url: str) -> str | None:
    """Return the name of the folder that a stored delta changes; None for a version that is stored in full.

    url: path or URL of the version. Raises StoreUnavailable.
    """
    try:
        if is_remote(url):
            place, name = parent_of(url)
            index = RemoteFolders(place).read(name, INDEX)
        else:
            index = (local_path(url) / INDEX).read_bytes()
        return read_json(index, _DeltaIndex).metadata.base_folder
    except (msgspec.DecodeError, FileNotFoundError, NotADirectoryError, WeightsDamaged):
        return None  # a damaged one is of use to nobody


def delta_bytes(url: str) -> int | None:
    """Return the size of a stored delta's own files; None for a version that is stored in full."""
    if base_of(url) is None:
        return None
    if is_remote(url):
        place, name = parent_of(url)
        files = RemoteFolders(place).contents(name).files
        return sum(stored.bytes for file, stored in files.items() if file.startswith(DELTA))
    return sum(path.stat().st_size for path in local_path(url).glob(f"{DELTA}*"))


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
        self._folders = [*(delta.folder for delta in reversed(deltas)), whole]
        self._tensors = open_checkpoint(whole)
        expected = deltas[0].metadata.base_digest if deltas else self._first.digest
        for manifest, digest in ((self._first, expected), *_links(deltas)):
            if manifest.digest != digest:
                raise WeightsDamaged(
                    f"the base of a delta has weights {manifest.digest}, not {digest}: restore {whole.parent} from a "
                    "copy"
                )

    @classmethod
    def to(cls, folder: Path, find: Find | None = None) -> DeltaChain:
        """Find the chain of a stored version. find: finds the versions before it, or whole copies; default: beside it.

        Raises WeightsDamaged, also if a version of the chain is missing, and the errors of `find`.
        """
        deltas, at = list[DeltaVersion](), folder
        while is_delta(at):
            deltas.append(delta := DeltaVersion.open(at))
            name = delta.metadata.base_folder
            at = find(name) if find else at.parent / name
            if not at.is_dir():
                raise WeightsDamaged(f"{folder} is a delta that needs {at}, which is missing: restore it from a copy")
            if len(deltas) > 1 and deltas[-2].manifest.version <= delta.manifest.version:
                raise WeightsDamaged(f"{folder} is a delta of a later version, {delta.folder}: restore it from a copy")
        return cls(at, deltas[::-1])

    @property
    def manifest(self) -> WeightManifest:
        """Manifest of the version."""
        return self._deltas[-1].manifest if self._deltas else self._first

    def file(self, name: str) -> Path:
        """Return a file that no step changes: config, tokenizer, carried tensors. Raises WeightsDamaged."""
        for folder in self._folders:
            if (path := folder / name).is_file():
                return path
        raise WeightsDamaged(f"{self._folders[0] / name} is missing: restore it from a copy")

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
        path = self.file(self.manifest.carried[name].file)
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


def write_delta_index(
    folder: Path, version: int, base: tuple[int, str, str], rule: DeltaRule, files: Mapping[str, str]
) -> Path:
    """Write the index of a delta; return its path.

    base: version, digest and folder name of the base. files: the file of each changed tensor.
    """
    base_version, digest, name = base
    metadata = DeltaMetadata(
        version=f"{version:06d}",
        base_version=f"{base_version:06d}",
        base_digest=digest,
        base_folder=name,
        delta_encoding=rule.encoding,
        compression_format=COMPRESSION,
        checksum_format=rule.checksum,
    )
    index = msgspec.json.encode(_DeltaIndex(metadata, dict(sorted(files.items()))))
    path = folder / INDEX
    path.write_bytes(msgspec.json.format(index, indent=2))
    return path


def link_rest(chain: DeltaChain, target: Path) -> None:
    """Link a version's files that no step changes: config, tokenizer, carried tensors."""
    manifest = chain.manifest
    for name in {*manifest.files, *(tensor.file for tensor in manifest.carried.values())} - {MANIFEST, INDEX}:
        source = chain.file(name)
        try:
            os.link(source, target / name)
        except FileExistsError:
            pass
        except OSError:  # another file system, or one without hard links
            shutil.copyfile(source, target / name)


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
