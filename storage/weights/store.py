"""`WeightStore`: weight versions as loadable Hugging Face checkpoint folders, each with a manifest of digests.

    base/                               config and tokenizer files, and the tensors that no version changes, copied
                                        once from the base checkpoint
    v000012-<digest, 12 digits>/        one version: safetensors, manifest.json, hard links into base/

A folder appears complete: it is written under a temporary name and renamed. Its name has the digest, so a writer that
was replaced (and does not know it) cannot overwrite its successor's version. Readers use the url in
`weights.published`.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from schemas.doc import doc
from schemas.errors import InvalidValue, WeightsDamaged
from schemas.outside_json import read_json
from storage.digests import TensorDigest, tensor_digests, weights_digest
from storage.object_store import file_errors, fsync
from storage.weights.files import (
    INDEX,
    ITEM_BYTES,
    SINGLE,
    TensorView,
    is_name,
    open_checkpoint,
    open_shard,
    view,
    write_shard,
)
from storage.weights.prediction_layers import prediction_tensors
from storage.weights.shards import SHARD_BYTES, Shard, TensorBytes, write_shards

MANIFEST = "manifest.json"
CONFIG = "config.json"
_SIDE_FILES = (".json", ".jinja", ".txt", ".model", ".tiktoken")


class StoredTensor(TensorDigest, frozen=True):
    """One tensor of a version."""

    file: Annotated[str, doc("Name of the shard with the tensor.")]


class WeightManifest(msgspec.Struct, frozen=True, kw_only=True):
    """One weight version."""

    version: Annotated[int, doc("Weight version, from 0.")]
    parent: Annotated[int | None, doc("Version from which it was trained; None for version 0.")]
    digest: Annotated[str, doc("Digest of `tensors` (storage/digests.py).")]
    bytes: Annotated[int, doc("Bytes of `tensors`.")]
    tensors: Annotated[dict[str, StoredTensor], doc("The trainer's tensors by name.")]
    carried: Annotated[
        dict[str, StoredTensor],
        doc("Tensors of the base checkpoint that the trainer does not have, by name: multi-token prediction layers."),
    ] = {}
    files: Annotated[dict[str, str], doc("sha256 (hex) of other files (config, tokenizer) by name.")] = {}


@dataclass(frozen=True, slots=True)
class Retention:
    """Rule for removing versions of weights or checkpoints. Each version is complete without the others."""

    newest: Annotated[int, doc("Keep this many newest versions.")] = 3
    every: Annotated[int, doc("Keep each multiple of this version number; 0: none.")] = 0
    evaluated: Annotated[
        int, doc("Keep the newest multiple of this, so that its evaluation can be finished; 0: none.")
    ] = 0

    def removable(self, versions: Collection[int], pinned: Collection[int] = ()) -> tuple[int, ...]:
        """Return the versions that may be removed, ascending. pinned: in use by an engine, a sample or a checkpoint."""
        newest = set(sorted(versions)[-self.newest :]) if self.newest > 0 else set()
        kept = newest | set(pinned)
        if self.evaluated:
            kept |= {max((v for v in versions if v % self.evaluated == 0), default=-1)}
        return tuple(v for v in sorted(set(versions)) if v not in kept and not (self.every and v % self.every == 0))


class WeightStore:
    """Versions under `url`, a folder that trainer and engines share (a path or `file://`).

    base: HF folder of config, tokenizer, and multi-token prediction layers, which versions repeat unless the trainer
    writes them; without it a version has weights only. max_shard_bytes: most bytes of one
    safetensors file. durable: fsync before a version appears.
    """

    def __init__(
        self,
        url: str,
        base: str | Path | None = None,
        *,
        max_shard_bytes: int = SHARD_BYTES,
        durable: bool = True,
    ) -> None:
        self.root = local_folder(url)
        self._base = Path(base) if base else None
        self.max_shard_bytes, self.durable = max_shard_bytes, durable
        self._carried: tuple[frozenset[str], list[Shard]] | None = None

    def write(self, version: int, tensors: Iterable[TensorBytes], parent: int | None) -> WeightManifest:
        """Store a version; a repetition with equal tensors changes nothing.

        It holds at most a shard and the next tensor in memory. Raises as `write_shards`.
        """
        with self.draft(version) as folder:
            shards = write_shards(folder, "shard", tensors, max_bytes=self.max_shard_bytes, durable=self.durable)
            return self.complete(folder, version, shards, parent)

    @contextmanager
    def draft(self, version: int) -> Iterator[Path]:
        """Create a folder for the shards of a version. On exit it is removed, unless `complete` was called."""
        temp = self.root / f".v{version:06d}.{os.getpid()}.{secrets.token_hex(4)}"
        with file_errors(str(temp)):
            temp.mkdir(parents=True)
        try:
            yield temp
        finally:
            shutil.rmtree(temp, ignore_errors=True)

    def complete(self, draft: Path, version: int, shards: Sequence[Shard], parent: int | None) -> WeightManifest:
        """Turn a draft with all shards into the version, atomically."""
        with file_errors(str(draft)):
            manifest = self._describe(draft, version, parent, shards)
            self._publish(draft, manifest)
        return manifest

    def folder(self, version: int, digest: str | None = None) -> str:
        """Return the path of a stored version. If several writers made it: the newest, or the one with the digest.

        Raises WeightsDamaged if there is none.
        """
        folders = self.root.glob(f"v{version:06d}-{(digest or '')[:12]}*")
        by_age = sorted(folders, key=lambda path: path.stat().st_mtime)
        if not by_age:
            raise WeightsDamaged(f"weight version {version} is not in {self.root}: it was removed, or never written")
        return str(by_age[-1])

    def versions(self) -> list[int]:
        """Return the stored versions, ascending."""
        return sorted({int(path.name[1:].split("-")[0]) for path in self.root.glob("v[0-9]*-*")})

    def remove(self, versions: Collection[int]) -> None:
        """Delete versions; see `Retention`."""
        for version in versions:
            for path in self.root.glob(f"v{version:06d}-*"):
                # Renamed first, so that a half-deleted folder is never taken for a version.
                gone = path.rename(self.root / f".removed-{path.name}-{secrets.token_hex(4)}")
                shutil.rmtree(gone, ignore_errors=True)

    def _describe(self, folder: Path, version: int, parent: int | None, shards: Sequence[Shard]) -> WeightManifest:
        trained = frozenset(name for shard in shards for name in shard.digests)
        stored = self._name_files(folder, [*shards, *self._link_carried(folder, trained)])
        tensors = {name: tensor for name, tensor in stored.items() if name in trained}
        manifest = WeightManifest(
            version=version,
            parent=parent,
            digest=weights_digest(tensors),
            bytes=sum(map(_size, tensors.values())),
            tensors=tensors,
            carried={name: tensor for name, tensor in stored.items() if name not in trained},
            files=self._link_side_files(folder),
        )
        path = write_manifest(folder, manifest)
        if self.durable:
            fsync(path)
        return manifest

    def _name_files(self, folder: Path, shards: Sequence[Shard]) -> dict[str, StoredTensor]:
        stored: dict[str, StoredTensor] = {}
        for number, (file, digests) in enumerate(shards, 1):
            name = SINGLE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            (folder / file).rename(folder / name)
            stored |= {tensor: StoredTensor(d.dtype, d.shape, d.sha256, name) for tensor, d in digests.items()}
        if len(shards) > 1:
            self._write_index(folder, stored)
        return stored

    def _write_index(self, folder: Path, stored: dict[str, StoredTensor]) -> None:
        weight_map = {name: stored[name].file for name in sorted(stored)}
        metadata = {"total_size": sum(map(_size, stored.values()))}
        index = msgspec.json.encode({"metadata": metadata, "weight_map": weight_map})
        (folder / INDEX).write_bytes(msgspec.json.format(index, indent=2))
        if self.durable:
            fsync(folder / INDEX)

    def _publish(self, temp: Path, manifest: WeightManifest) -> None:
        final = self.root / f"v{manifest.version:06d}-{manifest.digest[:12]}"
        if self.durable:
            fsync(temp)
        try:
            temp.rename(final)
        except OSError:
            if not final.is_dir():
                raise
            if read_manifest(final).digest != manifest.digest:
                raise WeightsDamaged(f"{final} has weights that do not fit its name: remove it") from None
        if self.durable:
            fsync(self.root)

    @functools.cached_property
    def _side_files(self) -> dict[str, str]:
        """sha256 of the base's files by name. They are copied, so that later edits have no effect."""
        if self._base is None:
            return {}
        kept = self.root / "base"
        kept.mkdir(parents=True, exist_ok=True)
        names = sorted(
            path.name
            for path in self._base.iterdir()
            if path.suffix in _SIDE_FILES and path.name not in (INDEX, MANIFEST)
        )
        for name in names:
            if not (kept / name).exists():
                temp = kept / f".{name}.{os.getpid()}"
                shutil.copyfile(self._base / name, temp)
                os.replace(temp, kept / name)
        return {name: hashlib.sha256((kept / name).read_bytes()).hexdigest() for name in names}

    def _link_side_files(self, folder: Path) -> dict[str, str]:
        for name in self._side_files:
            _link(self.root / "base" / name, folder / name)
        return self._side_files

    def _link_carried(self, folder: Path, trained: frozenset[str]) -> list[Shard]:
        """Link the tensors of the base that are not `trained` into a version; return their file, if there are any."""
        if self._carried is None or self._carried[0] != trained:
            self._carried = trained, self._keep_carried(trained)
        for shard in self._carried[1]:
            _link(self.root / "base" / shard.file, folder / shard.file)
        return self._carried[1]

    def _keep_carried(self, trained: frozenset[str]) -> list[Shard]:
        """Copy these tensors to one file, so that later edits have no effect. A file of an earlier process is kept."""
        if self._base is None or CONFIG not in self._side_files:
            return []
        kept = self.root / "base"
        every = self._keep(kept / "carried", functools.partial(prediction_tensors, kept / CONFIG, self._base))
        rest = {name: tensor for name, tensor in every.items() if name not in trained}
        if not rest:
            return []
        name = "carried"
        if rest.keys() != every.keys():
            name = f"carried-{hashlib.sha256(' '.join(sorted(rest)).encode()).hexdigest()[:12]}"
            rest = self._keep(kept / name, lambda: rest)
        return [Shard(name, tensor_digests(rest.items()))]

    def _keep(self, path: Path, make: Callable[[], dict[str, TensorView]]) -> dict[str, TensorView]:
        """Write tensors to a file, unless it exists or there are none; return the mapped tensors of the file."""
        if not path.exists():
            if not (tensors := make()):
                return {}
            temp = path.with_name(f".{path.name}.{os.getpid()}")
            temp.unlink(missing_ok=True)
            write_shard(temp, tensors, durable=self.durable)
            os.replace(temp, path)
        return dict(open_shard(path))


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


def write_manifest(folder: Path, manifest: WeightManifest) -> Path:
    """Write the manifest into a version's folder, and return its path."""
    path = folder / MANIFEST
    path.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
    return path


def read_manifest(folder: Path) -> WeightManifest:
    """Return a version's manifest, and check its digest. Raises WeightsDamaged."""
    path = folder / MANIFEST
    try:
        manifest = read_json(path.read_bytes(), WeightManifest)
    except FileNotFoundError:
        raise WeightsDamaged(f"{folder} is not a weight version: it has no {MANIFEST}") from None
    except msgspec.DecodeError as error:
        raise WeightsDamaged(f"{path} is damaged ({error}): restore the folder from a copy") from error
    stored = (*manifest.tensors.values(), *manifest.carried.values())
    if outside := [name for name in (*manifest.files, *(tensor.file for tensor in stored)) if not is_name(name)]:
        raise WeightsDamaged(f"{path} names {outside[0]!r}, which is not a file of its folder")
    if twice := manifest.tensors.keys() & manifest.carried.keys():
        raise WeightsDamaged(f"{path} lists {min(twice)!r} twice: restore the folder from a copy")
    if weights_digest(manifest.tensors) != manifest.digest:
        raise WeightsDamaged(f"{path} lists tensors that do not have its digest: restore the folder from a copy")
    return manifest


def digest_of(tensors: Iterable[TensorBytes]) -> str:
    """Return the digest of a version with these tensors, without storing it."""
    return weights_digest(tensor_digests((name, view(name, *tensor)) for name, *tensor in tensors))


def read(folder: str | Path) -> tuple[WeightManifest, dict[str, TensorView]]:
    """Return a version's manifest and the trainer's tensors, mapped and unverified."""
    root = local_folder(str(folder))
    manifest = read_manifest(root)
    return manifest, {name: tensor for name, tensor in open_checkpoint(root).items() if name not in manifest.carried}


def trained_tensors(folder: str | Path) -> dict[str, TensorView]:
    """Return the trainer's tensors of a version, or all of a Hugging Face folder, mapped and unverified."""
    root = local_folder(str(folder))
    return read(root)[1] if (root / MANIFEST).is_file() else open_checkpoint(root)


def verify(folder: str | Path, digest: str | None = None) -> WeightManifest:
    """Check every byte of a version against its manifest, and the manifest against `digest` (`weights.published`).

    Raises WeightsDamaged naming the tensor or file.
    """
    root = local_folder(str(folder))
    manifest, tensors = read_manifest(root), open_checkpoint(root)
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
    for name, sha256 in manifest.files.items():
        path = root / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
            raise WeightsDamaged(f"{path} is missing or was changed: restore it from a copy")
    return manifest


def local_folder(url: str) -> Path:
    """Return the path of a local URL. Raises InvalidValue for another URL: engines load weights from a folder."""
    if url.startswith("file://"):
        return Path(url.removeprefix("file://"))
    if "://" in url:
        raise InvalidValue(f"weights cannot be stored at {url}: give a folder that trainer and engines share")
    return Path(url)


def _size(digest: TensorDigest) -> int:
    return math.prod(digest.shape) * ITEM_BYTES[digest.dtype]
