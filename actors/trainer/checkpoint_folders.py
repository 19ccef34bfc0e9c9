"""`CheckpointFolders`: where a run's trainer checkpoints lie."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from schemas.checkpoints import CheckpointSaved


@dataclass(frozen=True, slots=True)
class CheckpointFolders:
    """`<root>/v000012`, one for each version that was due."""

    root: str

    def of(self, version: int) -> str:
        """The folder of a version."""
        return f"{self.root}/v{version:06d}"

    def find(self, saved: CheckpointSaved) -> str:
        """Where a checkpoint is that the log tells of: at its url, or here if the run's folder was moved."""
        return saved.url if Path(saved.url).exists() else self.of(saved.version)

    def make_way(self, version: int) -> None:
        """Set aside what has the name of a checkpoint that is about to be saved: one that was refused, or that nobody
        was told of. It is kept until the next one is set aside, so that a look at it is possible.
        """
        folder = Path(self.of(version))
        if folder.exists():
            aside = folder.with_name(f".{folder.name}.aside")
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)
