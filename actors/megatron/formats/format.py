"""`Format`: the interface of a format of weights. To add one, write a file here and add a line to `registry.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from actors.megatron.families.architecture import Architecture
from actors.megatron.formats.weights import Weights

Report = Callable[[str, int], None]
"""Called with the name of each written file and its bytes."""


class Format(Protocol):
    """Recognises, reads and writes a folder of weights."""

    def recognises(self, folder: Path) -> bool:
        """Return whether the folder has this format."""

    def load(self, folder: Path, architecture: Architecture, step: int | None = None) -> Weights:
        """Open the folder. step: the iteration, if the folder has several.

        Raises CheckpointMismatch if it is incomplete, or does not fit the architecture.
        """

    def predicts(self, folder: Path, architecture: Architecture, step: int | None = None) -> bool:
        """Return whether the folder has the multi-token prediction layer of the architecture.

        Raises CheckpointMismatch as `load`.
        """

    def save(self, weights: Weights, architecture: Architecture, folder: Path, origin: Path, report: Report) -> None:
        """Write the weights to an empty folder.

        origin: the model's Hugging Face folder. Raises InvalidValue if only a trainer writes this format.
        """
