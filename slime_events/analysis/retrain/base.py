"""The weights that a run begins with: where they are now."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from schemas.errors import InvalidValue
from slime_events.core.config.settings import TrainSettings

CONFIG = "config.json"


def with_base(settings: TrainSettings, weights: Path | None, given: str | None = None) -> TrainSettings:
    """The settings with a base checkpoint that is there: the one given, the run's own, or its weight version 0.

    weights: the run's folder of versions, where it has one. Whichever it is, its digest is checked before anything is
    trained. Raises InvalidValue where there is none.
    """
    trainer = settings.trainer
    if given is not None:
        if not (Path(given) / CONFIG).is_file():
            raise InvalidValue(f"--hf-checkpoint {given} is no Hugging Face folder: it has no {CONFIG}")
        return replace(settings, trainer=replace(trainer, hf_checkpoint=given))
    if (Path(trainer.hf_checkpoint) / CONFIG).is_file():
        return settings
    first = sorted(weights.glob("v000000-*")) if weights is not None and trainer.load is None else []
    if not first:
        raise InvalidValue(
            f"the run began with the weights in {trainer.hf_checkpoint}, and that folder is not here: give the same "
            "checkpoint with --hf-checkpoint FOLDER"
        )
    return replace(settings, trainer=replace(trainer, hf_checkpoint=str(first[-1])))
