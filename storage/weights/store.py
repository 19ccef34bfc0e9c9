"""`WeightStore`: weight versions as loadable Hugging Face checkpoint folders, each with a manifest of digests.

    base/                               config and tokenizer files, and the tensors that no version changes, copied
                                        once from the base checkpoint
    v000012-<digest, 12 digits>/        one version: safetensors, manifest.json, hard links into base/

A folder appears complete: it is written under a temporary name and renamed, or uploaded before the list of its files.
Its name has the digest, and in an object store a number of the writer too, so a writer that was replaced (and does not
know it) cannot overwrite its successor's version. Readers use the url in `weights.published`.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from schemas.doc import doc
from schemas.errors import WeightsDamaged
from schemas.weights import WeightsCarrier
from storage.digests import weights_digest
from storage.folders.local import LocalFolders
from storage.folders.places import local_copy, open_folders, parent_of
from storage.folders.remote import StoredFile
from storage.object_store import file_errors, fsync
from storage.weights.base_files import BaseFiles, state_of
from storage.weights.delta_rule import DeltaRule
from storage.weights.delta_store import Lineage, are_changes, delta_names
from storage.weights.delta_version import write_delta_index
from storage.weights.files import INDEX, open_checkpoint
from storage.weights.manifest import (
    StoredTensor,
    WeightManifest,
    read_manifest,
    tensor_bytes,
    version_name,
    write_index,
    write_manifest,
)
from storage.weights.offering import Offering
from storage.weights.shards import SHARD_BYTES, Shard, TensorBytes
from storage.weights.snapshot import DeltaBase, DeltaPlan, VersionWriter
from storage.weights.stored_version import opened, verify
from storage.weights.version_names import by_this_writer, file_names, prefix, version_of

log = logging.getLogger(__name__)


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


@dataclass(frozen=True, slots=True)
class Upload:
    """A version whose shards the writing processes upload themselves, each from its own host."""

    place: Annotated[str, doc("URL of all versions.")]
    name: Annotated[str, doc("Name of the version's folder.")]
    files: Annotated[dict[str, str], doc("Names in that folder by the shards' names.")]


class WeightStore:
    """Versions under `url`: a folder that trainer and engines share, or a place in an object store (`s3://`).

    base: HF folder of config, tokenizer, and multi-token prediction layers, which versions repeat unless the trainer
    writes them; without it a version has weights only. max_shard_bytes: most bytes of one
    safetensors file. durable: fsync before a version appears. deltas: store versions as deltas by this rule.
    offering: offers each version to engines besides.
    """

    def __init__(
        self,
        url: str,
        base: str | Path | None = None,
        *,
        max_shard_bytes: int = SHARD_BYTES,
        durable: bool = True,
        deltas: DeltaRule | None = None,
        offering: Offering | None = None,
    ) -> None:
        self._folders = open_folders(url)
        self.root = self._folders.work
        # A run's own folder keeps its copy of the base; the cache of a host may have those of other runs.
        kept = "base" if isinstance(self._folders, LocalFolders) else f"base-{state_of(base)}"
        self._base = BaseFiles(self.root / kept, base, durable=durable)
        self._deltas, self._offering = deltas, offering
        self.max_shard_bytes, self.durable = max_shard_bytes, durable
        self._uploaded: dict[str, str] = {}
        self._planned: dict[str, str] = {}
        self._lineage, self._writer = Lineage(self._folders), VersionWriter()
        self._written: WeightManifest | None = None

    def write(self, version: int, tensors: Iterable[TensorBytes], parent: int | None) -> WeightManifest:
        """Store a version; a repetition with equal tensors changes nothing.

        It holds at most a shard and the next tensor in memory, but with deltas all tensors. Raises as `write_shards`.
        """
        plan = self.plan(version, parent)
        share = tensors if plan is None else list(tensors)
        with self.draft(version) as folder:
            shards = self._writer.write(
                folder, lambda: share, max_bytes=self.max_shard_bytes, durable=self.durable, deltas=plan
            )
            return self.complete(folder, version, shards, parent, plan=plan)

    def plan(self, version: int, parent: int | None) -> DeltaPlan | None:
        """Return how the writing processes write a version, if versions may be deltas.

        A version is stored in full if its parent is gone. Raises StoreUnavailable.
        """
        if self._deltas is None:
            return None
        return DeltaPlan(self._deltas, None if parent is None else self._base_of(version, parent, self._deltas))

    def _base_of(self, version: int, parent: int, rule: DeltaRule) -> DeltaBase | None:
        if not rule.stores(version, 0) or not (name := self._name_of(parent)):
            return None
        if absent := set(self._lineage.chain(name)) - set(self._folders.names()):
            log.warning("storing weight version %d in full, because %s is gone", version, min(absent))
            return None
        try:
            manifest = self._manifest(self._folders.locate(name))
        except WeightsDamaged as error:
            log.warning("storing weight version %d in full, because its parent is damaged: %s", version, error)
            return None
        largest = max(map(tensor_bytes, manifest.tensors.values()), default=0)
        base = DeltaBase(parent, manifest.digest, self._folders.locate(name))
        return base if rule.stores(version, largest) else None

    def _name_of(self, version: int) -> str:
        """Return the folder's name of a version, if possible that of the one written last; empty: there is none."""
        last = self._written
        digest = last.digest if last is not None and last.version == version else None
        return self._uploaded.get(prefix(version, digest)) or self._find(version, digest)

    def _manifest(self, url: str) -> WeightManifest:
        """Return the manifest of a stored version. The one written last is not read again."""
        last = self._written
        if last is not None and parent_of(url)[1].startswith(version_name(last)):
            return last
        with opened(url) as version:
            return version.manifest

    @contextmanager
    def draft(self, version: int) -> Iterator[Path]:
        """Create a folder for the shards of a version. On exit it is removed, unless `complete` was called."""
        temp = self.root / f".v{version:06d}.{os.getpid()}.{secrets.token_hex(4)}"
        owner = _owner(temp)
        with file_errors(str(temp)):
            temp.mkdir(parents=True)
            owner.touch()
        try:
            yield temp
        finally:
            shutil.rmtree(temp, ignore_errors=True)
            owner.unlink(missing_ok=True)

    def in_memory(self, place: str) -> WeightStore:
        """Return a store of the same versions in a folder of this host's memory, which offers them to engines too."""
        memory = WeightStore(place, max_shard_bytes=self.max_shard_bytes, durable=False, offering=self._offering)
        memory._base = self._base  # both stores have the same files
        return memory

    def planned(self, manifest: WeightManifest) -> str:
        """Return the path or URL at which `adopt` stores a version that is not stored yet."""
        name = version_name(manifest)
        if not isinstance(self._folders, LocalFolders):
            name = self._planned.setdefault(name, by_this_writer(name))
        return self._folders.locate(name)

    def adopt(self, folder: str | Path) -> str:
        """Store a whole version from another folder of this host, which stays; return the path or URL.

        A repetition changes nothing. Raises NoSpace, StoreUnavailable, WeightsDamaged.
        """
        source = Path(folder)
        manifest = read_manifest(source)
        if self._deltas is not None:
            tensors = open_checkpoint(source)
            self.write(manifest.version, [(name, *tensors[name]) for name in manifest.tensors], manifest.parent)
            return self.folder(manifest.version, manifest.digest)
        with self.draft(manifest.version) as draft, file_errors(str(draft)):
            if self._base.side_files == manifest.files:
                self._base.link_side_files(draft)
            for path in sorted(source.iterdir()):
                if not (draft / path.name).exists():
                    shutil.copyfile(path, draft / path.name)
                    if self.durable:
                        fsync(draft / path.name)
            self._publish(draft, manifest, None, {})
        return self.folder(manifest.version, manifest.digest)

    def offer(self, folder: str | Path) -> None:
        """Offer the version in a folder of this host to engines again, after a restart."""
        if self._offering is not None:
            self._offering.offer(str(folder), read_manifest(Path(folder)))

    def upload(self, version: int, shards: Sequence[Shard]) -> Upload | None:
        """Return where the writing processes upload these shards; None if `complete` takes them from the draft."""
        if isinstance(self._folders, LocalFolders):
            return None
        digests = {name: digest for shard in shards for name, digest in shard.digests.items()}
        digest = weights_digest(digests)
        if self._find(version, digest):
            return None
        files = delta_names(shards)
        if not are_changes(shards):
            names = file_names(len(shards) + len(self._base.carried(frozenset(digests))))
            files = {shard.file: name for shard, name in zip(shards, names, strict=False)}
        return Upload(self._folders.url, by_this_writer(prefix(version, digest)), files)

    def complete(
        self,
        draft: Path,
        version: int,
        shards: Sequence[Shard],
        parent: int | None,
        *,
        plan: DeltaPlan | None = None,
        upload: Upload | None = None,
        uploaded: Mapping[str, StoredFile] | None = None,
    ) -> WeightManifest:
        """Turn a draft with all shards into the version, atomically.

        plan: by which they were written. uploaded: the files of an `upload`.
        """
        with file_errors(str(draft)):
            manifest = self._describe(draft, version, parent, shards, plan, away=upload is not None)
            if self._offering is not None and not are_changes(shards):
                self._offering.offer(str(draft), manifest)
            self._publish(draft, manifest, upload, uploaded or {})
            self._written = manifest
            if self._offering is not None and are_changes(shards):
                self._offering.offer(self.folder(version, manifest.digest), manifest)
        return manifest

    def carrier(self, version: int, digest: str) -> WeightsCarrier:
        """Return how engines can take a version besides its files; FILES if it is not offered."""
        return WeightsCarrier.FILES if self._offering is None else self._offering.carrier(version, digest)

    def retire(self, newest: int | None = None) -> None:
        """Offer no version before the newest published one any more; None: none at all. Files are not removed."""
        if self._offering is not None:
            self._offering.retire(newest)

    def folder(self, version: int, digest: str | None = None) -> str:
        """Return the path or URL of a stored version. If several writers made it: the newest, or one with the digest.

        Raises WeightsDamaged if there is none, StoreUnavailable.
        """
        if name := self._uploaded.get(prefix(version, digest)) or self._find(version, digest):
            return self._folders.locate(name)
        raise WeightsDamaged(
            f"weight version {version} is not in {self._folders.url}: it was removed, or never written"
        )

    def manifest(self, version: int, digest: str) -> WeightManifest:
        """Return the manifest of a stored version. Raises as `folder`, and WeightsDamaged."""
        with local_copy(self.folder(version, digest)) as folder:
            return read_manifest(folder)

    def is_whole(self, version: int, digest: str) -> bool:
        """Return whether a version can be read: each byte of a local one is checked, a remote one's files are listed.

        What is in an object store is checked when it is downloaded.
        """
        name = self._find(version, digest)
        if name and isinstance(self._folders, LocalFolders):
            verify(self._folders.locate(name), digest)
        return bool(name) and all(map(self._folders.is_whole, self._lineage.chain(name)))

    def versions(self) -> list[int]:
        """Return the stored versions, ascending."""
        return sorted(set(map(version_of, self._folders.names())) - {-1})

    def remove(self, versions: Collection[int]) -> None:
        """Delete versions; see `Retention`. Versions stay that others need which are deltas and stay."""
        self._uploaded.clear()
        kept = [name for name in self._folders.names() if version_of(name) not in versions]
        gone = set(versions) - set(map(version_of, self._lineage.needed(kept)))
        self._folders.remove([prefix(version) for version in sorted(gone)])
        if gone:
            self._lineage.forget()

    def _find(self, version: int, digest: str | None = None) -> str:
        """Return the name of the newest folder of a version; empty if there is none."""
        names = (name for name in self._folders.names() if name.startswith(prefix(version, digest)))
        return max(enumerate(names), default=(0, ""))[1]

    def _describe(
        self,
        folder: Path,
        version: int,
        parent: int | None,
        shards: Sequence[Shard],
        plan: DeltaPlan | None,
        *,
        away: bool,
    ) -> WeightManifest:
        """Write the other files of a version. away: some shards are on other hosts."""
        trained = frozenset(name for shard in shards for name in shard.digests)
        carried = self._base.carried(trained)
        files = file_names(len(shards) + len(carried))
        stored = {
            name: StoredTensor(digest.dtype, digest.shape, digest.sha256, file)
            for shard, file in zip([*shards, *carried], files, strict=True)
            for name, digest in shard.digests.items()
        }
        tensors = {name: tensor for name, tensor in stored.items() if name in trained}
        manifest = WeightManifest(
            version=version,
            parent=parent,
            digest=weights_digest(tensors),
            bytes=sum(map(tensor_bytes, tensors.values())),
            tensors=tensors,
            carried={name: tensor for name, tensor in stored.items() if name not in trained},
            files=self._base.side_files,
        )
        base = plan.base if plan is not None and are_changes(shards) else None
        names = delta_names(shards)
        if base is not None and plan is not None:
            frames = {name: names[shard.file] for shard in shards for name in shard.changed or ()}
            key = base.version, base.digest, parent_of(base.url)[1]
            write_delta_index(folder, version, key, plan.rule, frames)
        else:
            names = {shard.file: file for shard, file in zip(shards, files, strict=False)}
            if len(files) > 1:
                write_index(folder, stored)
        for file, name in names.items():
            if not away or (folder / file).exists():
                (folder / file).rename(folder / name)
        if base is None or not self._has_rest(base, manifest):
            self._base.link_side_files(folder)
            for shard, file in zip(self._base.link_carried(folder, trained), files[len(shards) :], strict=True):
                (folder / shard.file).rename(folder / file)
        written = [write_manifest(folder, manifest), *(path for path in (folder / INDEX,) if path.exists())]
        for path in written if self.durable else ():
            fsync(path)
        return manifest

    def _has_rest(self, base: DeltaBase, manifest: WeightManifest) -> bool:
        """Return whether a delta uses config, tokenizer and carried tensors of its base: a store has no links."""
        if isinstance(self._folders, LocalFolders):
            return False
        before = self._manifest(base.url)
        return before.files == manifest.files and before.carried == manifest.carried

    def _publish(
        self, temp: Path, manifest: WeightManifest, upload: Upload | None, uploaded: Mapping[str, StoredFile]
    ) -> None:
        name, folders = version_name(manifest), self._folders
        if not isinstance(folders, LocalFolders):
            if upload is None and self._find(manifest.version, manifest.digest):
                return  # a repetition
            written = upload.name if upload else self._planned.pop(name, "") or by_this_writer(name)
            folders.publish(temp, written, uploaded)
            self._uploaded[name] = written
            return
        if self.durable:
            fsync(temp)
        try:
            folders.publish(temp, name)
        except OSError:
            if not (final := self.root / name).is_dir():
                raise
            if read_manifest(final).digest != manifest.digest:
                raise WeightsDamaged(f"{final} has weights that do not fit its name: remove it") from None
        if self.durable:
            fsync(self.root)


def is_own_draft(draft: str | Path) -> bool:
    """Return whether the process that began a draft is on this host: it removes the draft itself."""
    return _owner(Path(draft)).exists()


def _owner(draft: Path) -> Path:
    return draft.with_name(f"{draft.name}.owner")
