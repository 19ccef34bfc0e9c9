"""`planned_model`: the model of a plan, from a run's settings and its checkpoint's config.json."""

from __future__ import annotations

from actors.megatron.families.architecture import Architecture
from actors.megatron.families.registry import read_architecture
from actors.megatron.planned_model import PlannedArchitecture
from actors.megatron.prediction_settings import check_prediction
from slime_events.algorithms.estimators import estimator_of
from slime_events.core.config.settings import TrainSettings


def planned_model(settings: TrainSettings, architecture: Architecture | None = None) -> PlannedArchitecture:
    """Return the model of the settings. architecture: default: as the checkpoint's config.json has it.

    Raises CheckpointMismatch if the trainer cannot build it.
    """
    trainer, algorithm = settings.trainer, settings.algorithm
    estimator = estimator_of(algorithm)
    frozen = estimator.needs_reference(algorithm) + (trainer.opd_teacher_load is not None)
    read = architecture or read_architecture(trainer.hf_checkpoint)
    return PlannedArchitecture(check_prediction(trainer, read), frozen=frozen, critic=estimator.needs_values)
