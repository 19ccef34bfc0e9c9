"""`as_in_slime`: drop folders in slime's launch scripts that are missing or hold checkpoints in Megatron's format.

Such a script has `--ref-load MODEL_torch_dist`, which slime's tool makes from `--hf-checkpoint MODEL`. It has the same
folder as `--load` and `--save`, which is empty at the first start. Both mean that the run begins with the model.
"""

from pathlib import Path

from msgspec.structs import replace

from slime_events.core.config.settings import TrainSettings

CONVERTED = "_torch_dist"
"""Suffix of a converted model's name in slime's documentation."""


def as_in_slime(settings: TrainSettings) -> tuple[TrainSettings, list[str]]:
    """Return the settings without these folders, and a sentence for each of them."""
    trainer, notes = settings.trainer, list[str]()
    model = trainer.hf_checkpoint
    for name in ("ref_load", "load"):
        path = getattr(trainer, name)
        if path and _is_converted(path, model):
            trainer = replace(trainer, **{name: None})
            notes.append(f"{name} {path} is ignored: it is {model} in Megatron's format, and the run reads {model}.")
    if trainer.load and trainer.save and _same(trainer.load, trainer.save) and not _holds_any(Path(trainer.load)):
        notes.append(f"load {trainer.load} holds no checkpoint yet, so the run begins with {model}, as in slime.")
        trainer = replace(trainer, load=None)
    return replace(settings, trainer=trainer), notes


def _is_converted(path: str, model: str) -> bool:
    return bool(model) and _same(path, model.rstrip("/") + CONVERTED) and not Path(path, "config.json").exists()


def _same(first: str, second: str) -> bool:
    return Path(first).absolute() == Path(second).absolute()


def _holds_any(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())
