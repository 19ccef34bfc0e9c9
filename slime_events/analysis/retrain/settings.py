"""Settings of retraining: a base checkpoint that exists here, and the layout of the ranks."""

from pathlib import Path

from msgspec.structs import replace

from schemas.errors import ImpossibleCombination, InvalidValue
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.trainer import TrainerSettings

CONFIG = "config.json"


def with_base(settings: TrainSettings, weights: Path | None, override: str | None = None) -> TrainSettings:
    """Return the settings with a base checkpoint that exists here: `override`, the run's own, or its weight version 0.

    weights: the run's folder of versions, if it has one. The checkpoint's digest is checked before training. Raises
    InvalidValue if there is no checkpoint.
    """
    trainer = settings.trainer
    if override is not None:
        if not (Path(override) / CONFIG).is_file():
            raise InvalidValue(f"--hf-checkpoint {override} is not a Hugging Face folder: it has no {CONFIG}")
        return replace(settings, trainer=replace(trainer, hf_checkpoint=override))
    if (Path(trainer.hf_checkpoint) / CONFIG).is_file():
        return settings
    first = sorted(weights.glob("v000000-*")) if weights is not None and trainer.load is None else []
    if not first:
        raise InvalidValue(
            f"the run started from the weights in {trainer.hf_checkpoint}, and that folder is not here. Give the same "
            "checkpoint with --hf-checkpoint FOLDER"
        )
    return replace(settings, trainer=replace(trainer, hf_checkpoint=str(first[-1])))


def with_topology(
    settings: TrainSettings, tensor: int | None, ranks: int | None, context: int | None = None
) -> TrainSettings:
    """Return the settings with another tensor or context parallel size or number of ranks, all on one node.

    Without `ranks`, the number of data parallel ranks stays. Raises ImpossibleCombination.
    """
    if tensor is None and ranks is None and context is None:
        return settings
    trainer = settings.trainer
    changed = replace(
        trainer,
        tensor_model_parallel_size=trainer.tensor_model_parallel_size if tensor is None else tensor,
        context_parallel_size=trainer.context_parallel_size if context is None else context,
    )
    size = _copy(changed)
    world = ranks if ranks is not None else size * (trainer.world_size // _copy(trainer))
    if size < 1 or world < 1 or world % size:
        raise ImpossibleCombination(
            f"{world} ranks do not divide into copies of the model on {size} ranks (tensor x pipeline x context "
            "parallel): --actor-num-gpus-per-node must be a multiple"
        )
    return replace(settings, trainer=replace(changed, actor_num_nodes=1, actor_num_gpus_per_node=world))


def _copy(trainer: TrainerSettings) -> int:
    """Return the ranks that hold a copy of the model."""
    return trainer.tensor_model_parallel_size * trainer.pipeline_model_parallel_size * trainer.context_parallel_size


def is_same(settings: TrainSettings, other: TrainSettings) -> bool:
    """Return whether both sum in the same order, so that equal inputs give equal bits."""
    return _shape(settings.trainer) == _shape(other.trainer)


def topology_text(settings: TrainSettings) -> str:
    """Return the layout in words: `1 rank`, `2 ranks, tensor parallel 2`."""
    *sizes, ranks, _ = _shape(settings.trainer)
    axes = zip(("tensor", "pipeline", "context"), sizes, strict=True)
    count = "1 rank" if ranks == 1 else f"{ranks} ranks"
    return ", ".join([count, *(f"{axis} parallel {size}" for axis, size in axes if size > 1)])


def _shape(trainer: TrainerSettings) -> tuple[int, int, int, int, bool]:
    sizes = trainer.tensor_model_parallel_size, trainer.pipeline_model_parallel_size, trainer.context_parallel_size
    return *sizes, trainer.world_size, trainer.sequence_parallel
