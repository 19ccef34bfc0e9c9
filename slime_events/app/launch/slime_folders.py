"""`as_in_slime`: folders that slime's launch scripts name, which are not there or hold Megatron's own checkpoints.

Such a script has `--ref-load MODEL_torch_dist`, which slime's tool makes of `--hf-checkpoint MODEL`, and one folder as
`--load` and `--save`, which is empty at the first start. Both say in another way: begin with the model.
"""

from pathlib import Path

from msgspec.structs import replace

from slime_events.core.config.settings import TrainSettings

CONVERTED = "_torch_dist"
"""What slime's documentation adds to the name of a model that was converted."""


def as_in_slime(settings: TrainSettings) -> tuple[TrainSettings, list[str]]:
    """The settings without these folders, and a sentence for each. Others stay: what cannot be read is refused."""
    trainer, notes = settings.trainer, list[str]()
    model = trainer.hf_checkpoint
    for name in ("ref_load", "load"):
        path = getattr(trainer, name)
        if path and _is_converted(path, model):
            trainer = replace(trainer, **{name: None})
            notes.append(f"{name} {path} is not read: it is {model} in Megatron's format, and {model} is there itself.")
    if trainer.load and trainer.save and _same(trainer.load, trainer.save) and not _holds_any(Path(trainer.load)):
        notes.append(f"load {trainer.load} holds no checkpoint yet, so the run begins with {model}, as in slime.")
        trainer = replace(trainer, load=None)
    return replace(settings, trainer=trainer), notes


def _is_converted(path: str, model: str) -> bool:
    return bool(model) and _same(path, model.rstrip("/") + CONVERTED) and not Path(path, "config.json").exists()


def _same(one: str, other: str) -> bool:
    return Path(one).absolute() == Path(other).absolute()


def _holds_any(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())
