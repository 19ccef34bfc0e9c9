"""`SaveSteps`: after which steps a checkpoint is saved. slime's rule: every N, at the end of an epoch, and the last.

Trainer, conductor and ranks ask here, since all have to say the same: a run is over once its checkpoints are saved.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SaveSteps:
    """Versions whose checkpoint is saved; version N is what step N has made, counted from 1.

    every: each multiple of it; None: there are no checkpoints at all. epoch: also each multiple of this, the steps of
    an epoch. last: and this one. Runs of earlier versions recorded neither epoch nor last.
    """

    every: int | None = None
    epoch: int | None = None
    last: int | None = None

    def due(self, version: int) -> bool:
        """Whether a checkpoint of this version is saved."""
        if self.every is None or version < 1:
            return False
        return version == self.last or any(version % each == 0 for each in (self.every, self.epoch) if each)

    def newest(self, version: int) -> int:
        """The newest version up to this one whose checkpoint is saved; 0: there is none."""
        if self.every is None:
            return 0
        last = self.last if self.last is not None and self.last <= version else 0
        return max(last, *(version - version % each for each in (self.every, self.epoch) if each))


NEVER = SaveSteps()
"""No checkpoints."""
