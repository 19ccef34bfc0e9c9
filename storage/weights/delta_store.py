"""`as_delta` stores a version of a `WeightStore` as a delta, `bases` lists the versions that deltas need."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Protocol

from schemas.errors import WeightsDamaged
from storage.weights.delta_rule import DeltaRule
from storage.weights.delta_version import base_of, write_delta
from storage.weights.manifest import WeightManifest, tensor_bytes, version_name
from storage.weights.whole_copies import COPIES, WholeCopies

log = logging.getLogger(__name__)


class Store(Protocol):
    """The part of a `WeightStore` that deltas need. The store imports this module."""

    root: Path
    durable: bool

    def versions(self) -> list[int]:
        """Return the stored versions."""
        ...

    def folder(self, version: int) -> str:
        """Return the path of a stored version."""
        ...

    def draft(self, version: int) -> contextlib.AbstractContextManager[Path]:
        """Create a folder that is removed on exit, unless it was published."""
        ...


@contextlib.contextmanager
def as_delta(store: Store, draft: Path, manifest: WeightManifest, rule: DeltaRule | None) -> Iterator[Path]:
    """Yield the folder to store for a whole draft: its delta from its parent, or the draft itself.

    After the delta is stored, the draft becomes the copy from which the next delta is made. Without a rule, or without
    a whole parent, the version is stored in full. Raises NoSpace, StoreUnavailable.
    """
    parent = manifest.parent
    if (
        rule is None
        or parent is None
        or parent not in store.versions()
        or not rule.stores(manifest.version, _largest(manifest))
    ):
        yield draft
        return
    base, copies = Path(store.folder(parent)), WholeCopies(store.root / COPIES)
    with contextlib.ExitStack() as held:
        try:
            whole = held.enter_context(copies.hold(base))
        except WeightsDamaged as error:
            log.warning("storing weight version %d in full, because its parent is damaged: %s", manifest.version, error)
            yield draft
            return
        delta = held.enter_context(store.draft(manifest.version))
        write_delta(delta, draft, whole, base.name, rule, durable=store.durable)
        yield delta
    copies.adopt(draft, manifest, version_name(manifest))


def bases(root: Path, versions: Collection[int]) -> set[int]:
    """Return the versions that the deltas among these versions need, directly or through others."""
    waiting, needed = set(versions), set[int]()
    while waiting:
        folders = root.glob(f"v{waiting.pop():06d}-*")
        further = {base for folder in folders if (base := base_of(folder)) is not None} - needed
        needed |= further
        waiting |= further
    return needed


def _largest(manifest: WeightManifest) -> int:
    return max((tensor_bytes(each) for each in manifest.tensors.values()), default=0)
