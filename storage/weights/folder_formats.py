"""`FolderFormat`: the format of a folder with a model's weights, recognised by its files."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from schemas.errors import CheckpointMismatch
from storage.weights.files import INDEX, SINGLE

MARK = "trainer.json"
"""File of a complete trainer checkpoint."""
TRACKER = "latest_checkpointed_iteration.txt"
"""Megatron-LM's file beside the folders of iterations: the newest one's number, or `release`."""
METADATA = ".metadata"
"""torch's list of the tensors in a torch_dist folder, which is written last."""
OF_HF = ("config.json", INDEX, SINGLE)
"""Files by which a Hugging Face folder is recognised; the weight versions of a run have no config.json."""


class FolderFormat(StrEnum):
    """A format that `--load` and `slime-events convert` read."""

    OURS = "ours"
    TORCH_DIST = "torch_dist"
    HF = "hf"


def format_of(folder: str | Path) -> FolderFormat | None:
    """Return the format of a folder; None if it has none of them, or does not exist."""
    path = Path(folder)
    if (path / MARK).is_file():
        return FolderFormat.OURS
    if (path / TRACKER).is_file() or (path / METADATA).is_file():
        return FolderFormat.TORCH_DIST
    return FolderFormat.HF if any((path / name).is_file() for name in OF_HF) else None


def iteration_folder(folder: str | Path, step: int | None = None, flag: str = "--ckpt-step") -> Path:
    """Return the folder of one iteration: `folder` itself, or the one in it that `step` or the tracker names.

    Raises CheckpointMismatch if it is missing or incomplete. flag: the flag that has set `step`.
    """
    path = Path(folder)
    if (path / METADATA).is_file():
        if step is not None:
            raise CheckpointMismatch(
                f"{flag} {step}: {folder} is a single checkpoint: leave {flag} out, or give the folder above"
            )
        return path
    name = f"iter_{step:07d}" if step is not None else _newest(path)
    chosen = path / name
    if (chosen / METADATA).is_file():
        return chosen
    named_by = f"{flag} {step}" if step is not None else TRACKER
    complete = sorted(child.name for child in path.iterdir() if (child / METADATA).is_file()) if path.is_dir() else []
    if any(chosen.glob("mp_rank_*")):
        raise CheckpointMismatch(
            f"{chosen} has Megatron's older format (mp_rank_*): save it with --ckpt-format torch_dist"
        )
    raise CheckpointMismatch(
        f"{chosen} ({named_by}) holds no complete torch_dist checkpoint; {folder} holds {', '.join(complete) or 'none'}"
    )


def _newest(path: Path) -> str:
    tracker = path / TRACKER
    try:
        text = tracker.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointMismatch(f"{tracker} cannot be read: {error}") from error
    if text == "release":
        return text
    if not text.isdecimal() or not text.isascii() or len(text) > 12:
        raise CheckpointMismatch(f"{tracker} names {text[:40]!r}, which is not an iteration: write its number")
    return f"iter_{int(text):07d}"
