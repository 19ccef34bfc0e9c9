"""`WeightStore`: each weight version a folder that is a loadable Hugging Face checkpoint, with a manifest of digests.

    base/                               config and tokenizer files, copied once from the base checkpoint
    v000012-<digest, 12 digits>/        one version: safetensors, manifest.json, hard links into base/

A folder is complete or not there: it is made under a temporary name and renamed. The digest in its name keeps a writer
that was replaced (and does not know it) from overwriting what its successor has published: readers follow the url of
`weights.published`.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import secrets
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from schemas.errors import InvalidValue, WeightsDamaged
from schemas.outside_json import read_json
from storage.digests import TensorDigest, tensor_digests, weights_digest
from storage.object_store import file_errors, fsync
from storage.weights.files import INDEX, ITEM_BYTES, SINGLE, TensorView, is_name, open_checkpoint, view
from storage.weights.shards import SHARD_BYTES, Shard, TensorBytes, write_shards

MANIFEST = "manifest.json"
_SIDE_FILES = (".json", ".jinja", ".txt", ".model", ".tiktoken")


class StoredTensor(TensorDigest, frozen=True):
    """One tensor. file: the shard that holds it."""

    file: str


class WeightManifest(msgspec.Struct, frozen=True, kw_only=True):
    """One weight version. digest: of all tensors (storage/digests.py). bytes: of all tensors.

    tensors: by name. files: sha256 of the checkpoint's other files (config, tokenizer).
    """

    version: int
    parent: int | None
    digest: str
    bytes: int
    tensors: dict[str, StoredTensor]
    files: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Retention:
    """Which versions, of weights or of checkpoints, may go: keep the newest `newest`, and for ever every `every`-th one
    (0: no others but the pinned). Each version is whole: none needs another to be read.

    evaluated: the newest multiple of it stays too, so that an evaluation of that version can be finished; 0: none.
    """

    newest: int = 3
    every: int = 0
    evaluated: int = 0

    def removable(self, versions: Collection[int], pinned: Collection[int] = ()) -> tuple[int, ...]:
        """Those of `versions` that may go, ascending. pinned: in use by an engine, a sample or a checkpoint."""
        newest = set(sorted(versions)[-self.newest :]) if self.newest > 0 else set()
        kept = newest | set(pinned)
        if self.evaluated:
            kept |= {max((v for v in versions if v % self.evaluated == 0), default=-1)}
        return tuple(v for v in sorted(set(versions)) if v not in kept and not (self.every and v % self.every == 0))


class WeightStore:
    """Versions under `url`, a folder that trainer and engines share (a path or `file://`).

    base: HF folder that config and tokenizer come from; without one a version is weights only. max_shard_bytes: of one
    safetensors file. durable: fsync before a version is there.
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

    def write(self, version: int, tensors: Iterable[TensorBytes], parent: int | None) -> WeightManifest:
        """Store a version; the same tensors again are the same version, already there.

        Takes tensors one by one, never holding more than a shard and the next. Raises as `write_shards`.
        """
        with self.draft(version) as folder:
            shards = write_shards(folder, "shard", tensors, max_bytes=self.max_shard_bytes, durable=self.durable)
            return self.complete(folder, version, shards, parent)

    @contextmanager
    def draft(self, version: int) -> Iterator[Path]:
        """A new folder for the shards of a version, which is removed unless `complete` makes a version of it."""
        temp = self.root / f".v{version:06d}.{os.getpid()}.{secrets.token_hex(4)}"
        with file_errors(str(temp)):
            temp.mkdir(parents=True)
        try:
            yield temp
        finally:
            shutil.rmtree(temp, ignore_errors=True)

    def complete(self, draft: Path, version: int, shards: Sequence[Shard], parent: int | None) -> WeightManifest:
        """Make a draft that holds all shards the version, in one step."""
        with file_errors(str(draft)):
            manifest = self._describe(draft, version, parent, shards)
            self._publish(draft, manifest)
        return manifest

    def folder(self, version: int, digest: str | None = None) -> str:
        """Path of a stored version. Where several writers made it, the newest, or the one with that digest.

        Raises WeightsDamaged where there is none.
        """
        folders = self.root.glob(f"v{version:06d}-{(digest or '')[:12]}*")
        by_age = sorted(folders, key=lambda path: path.stat().st_mtime)
        if not by_age:
            raise WeightsDamaged(f"weight version {version} is not in {self.root}: it was removed, or never written")
        return str(by_age[-1])

    def versions(self) -> list[int]:
        """Stored versions, ascending."""
        return sorted({int(path.name[1:].split("-")[0]) for path in self.root.glob("v[0-9]*-*")})

    def remove(self, versions: Collection[int]) -> None:
        """Delete versions (see `Retention` for which may go)."""
        for version in versions:
            for path in self.root.glob(f"v{version:06d}-*"):
                # Renamed first, so that a half-deleted folder is never taken for a version.
                gone = path.rename(self.root / f".removed-{path.name}-{secrets.token_hex(4)}")
                shutil.rmtree(gone, ignore_errors=True)

    def _describe(self, folder: Path, version: int, parent: int | None, shards: Sequence[Shard]) -> WeightManifest:
        stored = self._name_files(folder, shards)
        manifest = WeightManifest(
            version=version,
            parent=parent,
            digest=weights_digest(stored),
            bytes=sum(map(_size, stored.values())),
            tensors=stored,
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
                raise WeightsDamaged(f"{final} holds other weights than its name says: remove it") from None
        if self.durable:
            fsync(self.root)

    @functools.cached_property
    def _side_files(self) -> dict[str, str]:
        """Name -> sha256 of the base's files, after they were copied to where later edits do not reach them."""
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
            source = self.root / "base" / name
            try:
                os.link(source, folder / name)
            except OSError:  # a file system without hard links
                shutil.copyfile(source, folder / name)
        return self._side_files


def write_manifest(folder: Path, manifest: WeightManifest) -> Path:
    """Put it into a version's folder; its path."""
    path = folder / MANIFEST
    path.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
    return path


def read_manifest(folder: Path) -> WeightManifest:
    """A version's manifest, its own digest checked. Raises WeightsDamaged."""
    path = folder / MANIFEST
    try:
        manifest = read_json(path.read_bytes(), WeightManifest)
    except FileNotFoundError:
        raise WeightsDamaged(f"{folder} is no weight version: it has no {MANIFEST}") from None
    except msgspec.DecodeError as error:
        raise WeightsDamaged(f"{path} is damaged ({error}): restore the folder from a copy") from error
    if outside := [
        name for name in (*manifest.files, *(t.file for t in manifest.tensors.values())) if not is_name(name)
    ]:
        raise WeightsDamaged(f"{path} names {outside[0]!r}, which is no file of its folder")
    if weights_digest(manifest.tensors) != manifest.digest:
        raise WeightsDamaged(f"{path} lists tensors that do not have its digest: restore the folder from a copy")
    return manifest


def digest_of(tensors: Iterable[TensorBytes]) -> str:
    """The digest that a version of these tensors has, without storing one."""
    return weights_digest(tensor_digests((name, view(name, *tensor)) for name, *tensor in tensors))


def read(folder: str | Path) -> tuple[WeightManifest, dict[str, TensorView]]:
    """A version's manifest and its mapped tensors, unverified."""
    root = local_folder(str(folder))
    return read_manifest(root), open_checkpoint(root)


def verify(folder: str | Path, digest: str | None = None) -> WeightManifest:
    """Check every byte of a version against its manifest, and that against `digest` (of `weights.published`).

    Raises WeightsDamaged naming the tensor or file.
    """
    root = local_folder(str(folder))
    manifest, tensors = read(root)
    if digest is not None and manifest.digest != digest:
        raise WeightsDamaged(f"{root} holds weights {manifest.digest}, but {digest} was published: follow its url")
    if missing := manifest.tensors.keys() ^ tensors.keys():
        raise WeightsDamaged(f"{root}: tensor {min(missing)!r} is only in one of files and manifest")
    for name, found in tensor_digests(tensors.items()).items():
        stored = manifest.tensors[name]
        if found != TensorDigest(stored.dtype, stored.shape, stored.sha256):
            raise WeightsDamaged(
                f"tensor {name!r} in {root / stored.file} is {found.dtype} {list(found.shape)} with sha256 "
                f"{found.sha256}, its manifest says {stored.dtype} {list(stored.shape)} with {stored.sha256}: restore "
                "it"
            )
    for name, sha256 in manifest.files.items():
        path = root / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
            raise WeightsDamaged(f"{path} is missing or was changed: restore it from a copy")
    return manifest


def local_folder(url: str) -> Path:
    """The path of a local URL. InvalidValue for any other: engines load weights from a folder."""
    if url.startswith("file://"):
        return Path(url.removeprefix("file://"))
    if "://" in url:
        raise InvalidValue(f"weights cannot lie at {url}: give a folder that trainer and engines share")
    return Path(url)


def _size(digest: TensorDigest) -> int:
    return math.prod(digest.shape) * ITEM_BYTES[digest.dtype]
