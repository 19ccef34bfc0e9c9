"""`as_in_slime`: the folder that a run begins with, by the rules of slime's launch scripts.

Such a script has `--ref-load MODEL_torch_dist`, which slime's tool makes from `--hf-checkpoint MODEL`, and the same
folder as `--load` and `--save`, which is empty at the first start. The run then begins with `--ref-load`. If nobody has
made MODEL_torch_dist, it is MODEL.
"""

from pathlib import Path

from msgspec.structs import replace

from schemas.errors import InvalidValue
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.trainer import TrainerSettings
from storage.weights.folder_formats import FolderFormat, format_of

CONVERTED = "_torch_dist"
"""Suffix of a converted model's name in slime's documentation."""


def as_in_slime(settings: TrainSettings) -> tuple[TrainSettings, list[str]]:
    """Return the settings with the folders that the run reads, and a sentence for each change.

    Raises InvalidValue if the run would begin with a `ref_load` that is not a model.
    """
    trainer, notes = settings.trainer, list[str]()
    model = trainer.hf_checkpoint
    steps = {"ref_load": "ref_ckpt_step", "load": "ckpt_step"}
    for name, step in steps.items():
        path = getattr(trainer, name)
        if path and _is_converted(path, model):
            trainer = replace(trainer, **{name: None, step: None})
            notes.append(f"{name} {path} is ignored: it is {model} in Megatron's format, and the run reads {model}.")
    if trainer.load and trainer.save and _same(trainer.load, trainer.save) and not _holds_any(Path(trainer.load)):
        begin = f"load {trainer.load} holds no checkpoint yet, so the run begins with"
        trainer, first = _from_reference(trainer)
        notes.append(f"{begin} {first}, as in slime.")
    elif trainer.load is None and trainer.ref_load and format_of(trainer.ref_load) is FolderFormat.TORCH_DIST:
        trainer, first = _from_reference(trainer)
        notes.append(f"load is not set, so the run begins with {first}, as in slime.")
    return replace(settings, trainer=trainer), notes


def _from_reference(trainer: TrainerSettings) -> tuple[TrainerSettings, str]:
    """Return the settings that begin with `ref_load`, or without it with `hf_checkpoint`, and a text for the folder.

    Raises InvalidValue if `ref_load` is no model.
    """
    if not trainer.ref_load:
        return replace(trainer, load=None, ckpt_step=None), trainer.hf_checkpoint
    if format_of(trainer.ref_load) is None:
        problem = "holds no model" if Path(trainer.ref_load).exists() else "does not exist"
        raise InvalidValue(
            f"--ref-load {trainer.ref_load} {problem}, and the run would begin with it, since --load {trainer.load} "
            "holds no checkpoint yet: correct the path, or leave --ref-load out to begin with --hf-checkpoint"
        )
    begun = replace(trainer, load=trainer.ref_load, ckpt_step=trainer.ref_ckpt_step, load_optim=False)
    return begun, f"ref_load {trainer.ref_load}"


def _is_converted(path: str, model: str) -> bool:
    return bool(model) and _same(path, model.rstrip("/") + CONVERTED) and format_of(path) is None


def _same(first: str, second: str) -> bool:
    return Path(first).absolute() == Path(second).absolute()


def _holds_any(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())
