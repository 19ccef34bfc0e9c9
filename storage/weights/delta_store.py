"""`Lineage`: which versions of a `WeightStore` need which others, because they are stored as deltas."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from storage.folders.folders import Folders
from storage.weights.delta_version import DELTA, base_of
from storage.weights.shards import Shard


class Lineage:
    """Folders by name. A folder does not change until it is removed, so each is read once."""

    def __init__(self, folders: Folders) -> None:
        self._folders = folders
        self._bases = dict[str, str | None]()

    def chain(self, name: str) -> list[str]:
        """Return a version's folder and those that it needs, down to a full version. They may not all exist."""
        names, there = list[str](), set(self._folders.names())
        at: str | None = name
        while at is not None and at not in names:
            names.append(at)
            at = self._base(at) if at in there else None
        return names

    def needed(self, names: Collection[str]) -> set[str]:
        """Return the folders that some folders need, directly or through others."""
        waiting, needed = set(names), set[str]()
        while waiting:
            base = self._base(waiting.pop())
            if base is not None and base not in needed:
                needed.add(base)
                waiting.add(base)
        return needed

    def forget(self) -> None:
        """Read folders again: some were removed, and another may get the name of one of them."""
        self._bases.clear()

    def _base(self, name: str) -> str | None:
        if name not in self._bases:
            self._bases[name] = base_of(self._folders.locate(name))
        return self._bases[name]


def delta_names(shards: Sequence[Shard]) -> dict[str, str]:
    """Return the names of a delta's files by those that they have until it is complete."""
    changed = [shard.file for shard in shards if shard.changed]
    return {file: f"{DELTA}{number:05d}-of-{len(changed):05d}.safetensors" for number, file in enumerate(changed, 1)}


def are_changes(shards: Iterable[Shard]) -> bool:
    """Return whether the files of a version have only what differs from its base."""
    return any(shard.changed is not None for shard in shards)
