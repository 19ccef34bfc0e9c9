"""`FORMATS`: the formats of weights that the trainer and `slime-events convert` read."""

from __future__ import annotations

from pathlib import Path

from actors.megatron.families.architecture import Architecture
from actors.megatron.formats.format import Format
from actors.megatron.formats.hugging_face import HuggingFace
from actors.megatron.formats.ours import Ours
from actors.megatron.formats.torch_dist import TorchDist
from actors.megatron.formats.weights import Weights
from schemas.errors import CheckpointMismatch
from storage.weights.folder_formats import FolderFormat, iteration_folder
from storage.weights.torch_dist import holds_optimizer, read_stored_tensors

FORMATS: dict[FolderFormat, Format] = {
    FolderFormat.OURS: Ours(),
    FolderFormat.TORCH_DIST: TorchDist(),
    FolderFormat.HF: HuggingFace(),
}


def format_named(folder: Path) -> FolderFormat:
    """Return the format that recognises the folder. Raises CheckpointMismatch."""
    for name, each in FORMATS.items():
        if each.recognises(folder):
            return name
    if not folder.is_dir():
        raise CheckpointMismatch(f"{folder} does not exist: give the folder of a model or of a checkpoint")
    raise CheckpointMismatch(
        f"{folder} is neither a Hugging Face folder (config.json), a torch_dist folder "
        "(latest_checkpointed_iteration.txt, .metadata) nor a trainer checkpoint (trainer.json)"
    )


def check_beginning(folder: str | Path, step: int | None, *, optimizer: bool) -> None:
    """Check that a run can begin with the folder. step: its iteration. optimizer: its optimizer is to be loaded.

    Raises CheckpointMismatch.
    """
    path = Path(folder)
    if format_named(path) is not FolderFormat.TORCH_DIST:
        if step is not None:
            raise CheckpointMismatch(f"--ckpt-step {step}: {folder} has no iterations, leave --ckpt-step out")
        return
    iteration = iteration_folder(path, step)
    if optimizer and holds_optimizer(read_stored_tensors(iteration)):
        raise CheckpointMismatch(
            f"{iteration} has an optimizer of Megatron-LM, which the trainer cannot read: --no-load-optim begins with "
            "its weights and a new optimizer"
        )


def open_weights(folder: str | Path, architecture: Architecture, step: int | None = None) -> Weights:
    """Open a folder of any format. Raises CheckpointMismatch."""
    path = Path(folder)
    return FORMATS[format_named(path)].load(path, architecture, step)
