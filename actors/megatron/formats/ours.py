"""`Ours`: the trainer's own checkpoints, which are torch_dist folders with optimizer, schedule and a mark."""

from __future__ import annotations

from pathlib import Path

from actors.megatron.families.architecture import Architecture
from actors.megatron.formats.format import Report
from actors.megatron.formats.torch_dist import TorchDistWeights, holds_prediction
from actors.megatron.formats.weights import Weights
from schemas.errors import CheckpointMismatch, InvalidValue
from storage.weights.folder_formats import FolderFormat, format_of


class Ours:
    """The `Format` of a trainer's checkpoints. `checkpoint.load` reads optimizer and schedule too."""

    def recognises(self, folder: Path) -> bool:
        """Return whether the folder is a complete checkpoint of a trainer."""
        return format_of(folder) is FolderFormat.OURS

    def load(self, folder: Path, architecture: Architecture, step: int | None = None) -> Weights:
        """Open the weights of the policy."""
        if step is not None:
            raise CheckpointMismatch(f"{folder} is a single checkpoint, which has no step {step}")
        return TorchDistWeights(folder, architecture)

    def predicts(self, folder: Path, architecture: Architecture, step: int | None = None) -> bool:
        """Return whether it has parameters of the layer."""
        return holds_prediction(folder)

    def save(self, weights: Weights, architecture: Architecture, folder: Path, origin: Path, report: Report) -> None:
        """Refuse: weights alone are no checkpoint of a trainer."""
        raise InvalidValue("only a trainer writes its checkpoints: convert to hf or torch_dist")
