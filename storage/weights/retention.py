"""Which weight versions may go. Pure: the store removes what this names."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Retention:
    """Keep the newest `newest` versions, and for ever every `every`-th one (0: none but those and the pinned).

    evaluated: of every so-manieth version the newest stays too, so that an evaluation of it can be finished; 0: none.
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
