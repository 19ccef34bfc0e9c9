"""`SaveSteps`: the steps after which a checkpoint is saved, by slime's rule: every N, at the end of an epoch, the last.

Trainer, conductor and ranks must agree on them: a run ends only when its checkpoints are saved.
"""

from dataclasses import dataclass
from typing import Annotated

from schemas.doc import doc


@dataclass(frozen=True, slots=True)
class SaveSteps:
    """The versions whose checkpoint is saved; step N makes version N, counted from 1."""

    every: Annotated[int | None, doc("save each multiple of this version; None: no checkpoints")] = None
    epoch: Annotated[int | None, doc("steps of an epoch: save each multiple too; None in runs of older releases")] = (
        None
    )
    last: Annotated[int | None, doc("save this version too; None in runs of older releases")] = None

    def due(self, version: int) -> bool:
        """Return whether this version's checkpoint is saved."""
        if self.every is None or version < 1:
            return False
        return version == self.last or any(version % each == 0 for each in (self.every, self.epoch) if each)

    def newest(self, version: int) -> int:
        """Return the newest version up to this one whose checkpoint is saved; 0: there is none."""
        if self.every is None:
            return 0
        last = self.last if self.last is not None and self.last <= version else 0
        return max(last, *(version - version % each for each in (self.every, self.epoch) if each))


NEVER = SaveSteps()
"""No checkpoints."""
