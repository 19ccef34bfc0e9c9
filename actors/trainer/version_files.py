"""`VersionFiles`: writes a trainer's weight versions, before the commits of their steps or after them.

before:  the ranks write the files -> [step.committed + weights.published]
after:   the ranks write to this host's memory -> [step.committed (stored: false) + weights.published]
         -> the next step trains, while the files are written -> weights.stored

Memory here is a folder of a tmpfs. It outlives the trainer's process, so the next trainer on this host stores what an
earlier one has not. A version that is lost with its host is trained again by `Trainer`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import stat
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, NamedTuple

from actors.trainer.ranks import Ranks
from schemas.doc import doc
from schemas.errors import NoSpace, StorageError, WeightsDamaged
from schemas.weights import WeightsKind, WeightsPublished, WeightsStored
from slime_events.core.config.trainer import TrainerSettings
from slime_events.loop.training.training_state import TrainingState
from storage.cancellation import end_all
from storage.host_memory import available_memory
from storage.weights.delta_version import delta_bytes
from storage.weights.manifest import WeightManifest
from storage.weights.memory_place import memory_place
from storage.weights.store import WeightStore

log = logging.getLogger(__name__)
MOST_HELD = 2
"""Versions whose files are not complete. A further step waits for the oldest of them."""
SPARE = 2
"""A version is held only if this many times its bytes are available."""

Append = Callable[[WeightsStored], Awaitable[None]]


class Written(NamedTuple):
    """A version that the ranks have written."""

    manifest: WeightManifest
    is_stored: Annotated[bool, doc("whether its files are complete; if not, it is in memory")]


class VersionFiles:
    """memory: folder for versions that are not stored yet; None: store each version before its step is committed.

    append: called with each version whose files are complete after its commit.
    """

    def __init__(self, ranks: Ranks, store: WeightStore, memory: str | None, append: Append) -> None:
        self._ranks, self._store, self._append = ranks, store, append
        self._place = Path(memory) if memory else None
        self._memory = store.in_memory(memory) if memory else None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._bytes = 0

    async def write(self, version: int) -> WeightManifest:
        """Store the ranks' weights as a version."""
        manifest = await self._ranks.write_weights(self._store, version, version - 1 if version else None)
        self._bytes = manifest.bytes
        return manifest

    async def hold_or_write(self, version: int) -> Written:
        """Write the ranks' weights to memory if there is room, and else to the store."""
        if self._memory is None:
            return Written(await self.write(version), True)
        await self.settle(most=MOST_HELD - 1)
        if (room := self._room()) < SPARE * self._bytes:
            text = "weight version %d is stored before its commit: %s bytes of memory are available, and %s are needed"
            log.warning(text, version, f"{room:,}", f"{SPARE * self._bytes:,}")
            return Written(await self.write(version), True)
        try:
            manifest = await self._ranks.write_weights(self._memory, version, version - 1 if version else None)
        except NoSpace as error:
            log.warning("weight version %d is stored before its commit: %s", version, error)
            return Written(await self.write(version), True)
        return Written(manifest, False)

    def _room(self) -> int:
        assert self._place is not None, "there is room only in memory"
        _private(self._place)
        return min(available_memory(), shutil.disk_usage(self._place).free)

    def store_later(self, manifest: WeightManifest) -> None:
        """Begin to store a held version, after its step is committed and after earlier versions are stored."""
        before = next(reversed(self._tasks.values()), None)
        task = asyncio.create_task(self._store_held(manifest, before), name=f"store-weights-{manifest.version}")
        self._tasks[manifest.version] = task

    async def settle(self, *, most: int | None = None) -> None:
        """Raise the error of a version that could not be stored. most: wait until so few versions are not stored."""
        for version, task in list(self._tasks.items()):
            if task.done() or (most is not None and len(self._tasks) > most):
                await task
                del self._tasks[version]

    async def _store_held(self, manifest: WeightManifest, before: asyncio.Task[None] | None) -> None:
        assert self._memory is not None, "only versions in memory are stored later"
        if before is not None:
            await before  # its error is this one's too: versions are stored in order
        begun, held = time.perf_counter(), self._memory.folder(manifest.version, manifest.digest)
        url = await asyncio.to_thread(self._store.adopt, held)
        await self._append(self._stored(manifest, url, time.perf_counter() - begun))
        # The newest one stays, since engines may be reading it.
        versions = self._memory.versions()
        old = [version for version in versions[:-1] if version <= manifest.version]
        await asyncio.to_thread(self._memory.remove, old)

    def _stored(self, manifest: WeightManifest, url: str, seconds: float = 0.0) -> WeightsStored:
        changes = delta_bytes(url)
        return WeightsStored(
            version=manifest.version,
            digest=manifest.digest,
            url=url,
            bytes=manifest.bytes if changes is None else changes,
            kind=WeightsKind.FULL if changes is None else WeightsKind.DELTA,
            seconds=seconds,
        )

    async def stored_again(self, manifest: WeightManifest) -> None:
        """Append that a version is stored, which an earlier trainer committed and had not stored."""
        await self._append(self._stored(manifest, self._store.folder(manifest.version, manifest.digest)))

    def published(self, written: Written, functions: dict[str, str]) -> WeightsPublished:
        """Return the event that lets engines take a version. functions: user's functions that saw its files."""
        manifest = written.manifest
        url = self._store.folder(manifest.version, manifest.digest) if written.is_stored else ""
        changes = delta_bytes(url) if url else None
        return WeightsPublished(
            version=manifest.version,
            parent=manifest.parent,
            url=url or self._store.planned(manifest),
            digest=manifest.digest,
            bytes=manifest.bytes if changes is None else changes,
            kind=WeightsKind.FULL if changes is None else WeightsKind.DELTA,
            functions=functions,
            carrier=self._store.carrier(manifest.version, manifest.digest),
        )

    async def take_over(self, trained: TrainingState) -> set[int]:
        """Store what an earlier trainer has held here and not stored; return the versions to train again.

        They are the committed versions that are neither stored nor held, and the newest published version if its files
        are gone.
        """
        missing = set[int]()
        for version, digest in sorted(trained.unstored.items()):
            manifest = await asyncio.to_thread(self._held, version, digest)
            if manifest is not None:
                log.info("weight version %d was not stored yet, and is in memory", version)
                await asyncio.to_thread(self._offer, version, digest, trained)
                self.store_later(manifest)
            elif not await asyncio.to_thread(self._is_stored, version, digest):
                log.warning("weight version %d was not stored before its memory was lost: it is trained again", version)
                missing.add(version)
            else:
                await self.stored_again(await asyncio.to_thread(self._store.manifest, version, digest))
        await self.settle(most=0)
        newest = trained.published.get(trained.newest_published)
        if newest and not await asyncio.to_thread(self._is_stored, newest.version, newest.digest):
            missing.add(newest.version)
        return missing

    def _held(self, version: int, digest: str) -> WeightManifest | None:
        """Return the manifest of a version that is whole in memory."""
        if self._memory is None:
            return None
        try:
            _private(self._place)
            return self._memory.manifest(version, digest) if self._memory.is_whole(version, digest) else None
        except WeightsDamaged as error:
            log.warning("weight version %d in memory is not used: %s", version, error)
            return None

    def _offer(self, version: int, digest: str, trained: TrainingState) -> None:
        if version == trained.newest_published and self._memory is not None:
            self._memory.offer(self._memory.folder(version, digest))

    def _is_stored(self, version: int, digest: str) -> bool:
        """Return whether engines can load the version. Remove damaged files, so that they are written again."""
        problem = "it is gone"
        try:
            if self._store.is_whole(version, digest):
                return True
        except WeightsDamaged as error:
            problem = str(error)
        log.warning("writing weight version %d again: %s", version, problem)
        self._store.remove([version])
        return False

    def retire(self, newest: int | None) -> None:
        """Offer no version before the newest published one any more; None: none at all."""
        self._store.retire(newest)

    async def stop(self) -> None:
        """End. What is not stored stays in memory for the next trainer."""
        await end_all(*self._tasks.values())
        self.retire(None)

    async def end(self) -> None:
        """Store what waits, and give the memory back."""
        await self.settle(most=0)
        if self._place is not None:
            await asyncio.to_thread(shutil.rmtree, self._place, ignore_errors=True)


def memory_of(run: str, url: str, trainer: TrainerSettings, *, on_one_host: bool) -> str | None:
    """Return the folder for versions that are not stored yet; None if each version is stored before its commit.

    url: of the stored versions. on_one_host: whether all ranks are on this host.
    """
    if trainer.store_before_commit:
        return None
    place = memory_place(run, url)
    if place is None or not on_one_host:
        why = "the ranks are on several hosts" if place else "this host has no /dev/shm"
        log.warning("weight versions are stored before their commits, as %s", why)
        return None
    return str(place)


def _private(place: Path | None) -> None:
    """Create the folder for this user alone. Raises StorageError if another user can write to it."""
    if place is None:
        return
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = place.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise StorageError(f"{place} is not a folder of this user alone: remove it")
