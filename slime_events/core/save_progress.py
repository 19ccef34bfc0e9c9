"""`SaveProgress`: how far a checkpoint is that ranks write while they train."""

from dataclasses import dataclass
from enum import Enum


class SaveState(Enum):
    """WRITING: some rank is not done. SAVED: complete and on disk. FAILED: given up, its files are removed."""

    WRITING = "writing"
    SAVED = "saved"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class SaveProgress:
    """problem: in words, of the first rank that failed."""

    state: SaveState
    problem: str = ""
