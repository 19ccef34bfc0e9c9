"""`SharedVersions`: offers weight versions in memory to the engines on the trainer's host."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path

from schemas.errors import NoSpace, StoreUnavailable, WeightsDamaged
from schemas.weights import WeightsCarrier
from storage.host_memory import available_memory
from storage.weights.base_files import MANIFEST
from storage.weights.files import INDEX
from storage.weights.handover import Handover, close_all
from storage.weights.manifest import WeightManifest
from storage.weights.sealed_files import copy_sealed
from storage.weights.whole_copies import whole_copy

log = logging.getLogger(__name__)
SPARE = 2
"""A version is offered only if this many times its bytes are available."""


class SharedVersions:
    """See `Offering`. The files of the newest version stay in this process's memory, and end with it.

    due: whether engines will load a version.
    """

    def __init__(self, run: str, due: Callable[[int], bool]) -> None:
        self._run, self._due = run, due
        self._offered: dict[tuple[int, str], Handover] = {}

    def offer(self, folder: str, manifest: WeightManifest) -> None:
        key = manifest.version, manifest.digest
        if key in self._offered or not self._due(manifest.version):
            return
        try:
            with whole_copy(folder) as whole:
                self._offered[key] = _hand_over(self._run, whole, manifest)
        except (OSError, NoSpace, StoreUnavailable, WeightsDamaged) as error:
            log.warning("weight version %d is not in shared memory, so engines read its files: %s", key[0], error)

    def carrier(self, version: int, digest: str) -> WeightsCarrier:
        return WeightsCarrier.SHARED_MEMORY if (version, digest) in self._offered else WeightsCarrier.FILES

    def retire(self, newest: int | None) -> None:
        for version, digest in list(self._offered):
            if newest is None or version < newest:
                self._offered.pop((version, digest)).close()


def handover_name(run: str, version: int, digest: str) -> str:
    """Return the name under which a version is handed over."""
    return f"weights-{hashlib.sha256(f'{run} {version} {digest}'.encode()).hexdigest()[:40]}"


def _hand_over(run: str, draft: Path, manifest: WeightManifest) -> Handover:
    """Copy a whole version into memory. Raises OSError, WeightsDamaged."""
    if SPARE * manifest.bytes > (available := available_memory()):
        raise OSError(f"it has {manifest.bytes:,} bytes, and {available:,} of memory are available")
    stored = (*manifest.tensors.values(), *manifest.carried.values())
    names = {MANIFEST, *manifest.files, *(tensor.file for tensor in stored)}
    if (draft / INDEX).exists():
        names.add(INDEX)
    if absent := sorted(name for name in names if not (draft / name).exists()):
        raise OSError(f"{absent[0]} is on another host")
    files = dict[str, int]()
    try:
        for name in sorted(names):
            files[name] = copy_sealed(draft / name)
        return Handover(handover_name(run, manifest.version, manifest.digest), files)
    except BaseException:  # interrupted too: no file stays open
        close_all(files.values())
        raise
