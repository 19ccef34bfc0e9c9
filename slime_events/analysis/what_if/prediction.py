"""`WhatIf`: what was seen in a run, what is predicted for it under other policies, and what cannot be known."""

from __future__ import annotations

from typing import Annotated

import msgspec

from schemas.doc import doc
from slime_events.analysis.what_if.delays import Delays
from slime_events.analysis.what_if.engine_speed import EngineSpeed
from slime_events.analysis.what_if.figures import Figures
from slime_events.analysis.what_if.trainer_speed import TrainerSpeed

Value = str | int | None


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a simulated run."""

    changed: Annotated[dict[str, Value], doc("settings that differ from the run's, by flag without dashes")]
    figures: Annotated[Figures, doc("figures of the simulated run")]
    step_seconds_range: Annotated[
        tuple[float, float] | None,
        doc("least and most step time [s], by what the run does not tell about the time of a chunk; None: not used"),
    ] = None
    beyond: Annotated[tuple[str, ...], doc("what the run has not shown, but this prediction depends on")]


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """Predictions from one run."""

    run: Annotated[str, doc("name of the run")]
    where: Annotated[str, doc("folder, or URL of the archive")]
    steps: Annotated[int, doc("committed steps; each prediction has as many")]
    ended: Annotated[bool, doc("whether the run has ended; if not, its steps so far are used")]
    seed: Annotated[int, doc("seed of the random choices")]
    seen: Annotated[Figures, doc("figures of the run itself")]
    own: Annotated[Figures, doc("figures of the run simulated under its own settings: how well the models fit")]
    predictions: Annotated[tuple[Prediction, ...], doc("one for each policy")]
    engines: Annotated[EngineSpeed, doc("model of the engines")]
    trainer: Annotated[TrainerSpeed, doc("model of the trainer")]
    delays: Annotated[Delays, doc("times between events")]
    unknown: Annotated[tuple[str, ...], doc("what no prediction from this run can know, a sentence each")]
