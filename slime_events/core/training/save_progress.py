"""`SaveProgress`: the progress of a checkpoint that ranks write while they train."""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from schemas.doc import doc


class SaveState(Enum):
    """WRITING: some rank is not done. SAVED: complete and on disk. FAILED: not saved, and its files are removed."""

    WRITING = "writing"
    SAVED = "saved"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class SaveProgress:
    """The state of a checkpoint that is being saved."""

    state: SaveState
    problem: Annotated[str, doc("error of the first rank that failed; empty: none failed")] = ""
