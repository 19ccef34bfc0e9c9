"""`StepSettings`: the settings and the user's functions of a run's steps."""

from dataclasses import dataclass
from typing import Annotated

from schemas.doc import doc
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.trainer import TrainerSettings
from slime_events.plugins.trainer_points import TrainerFunctions


@dataclass(frozen=True, slots=True)
class StepSettings:
    """Settings that are equal for all steps of a run."""

    trainer: TrainerSettings
    algorithm: AlgorithmSettings
    functions: Annotated[TrainerFunctions, doc("The user's functions.")]
