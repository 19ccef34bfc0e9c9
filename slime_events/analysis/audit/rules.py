"""`Rules`: what a run's own settings bind it to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.settings import TrainSettings
from slime_events.loop.conductor.plan import Plan, make_plan


@dataclass(frozen=True, slots=True)
class Rules:
    """plan, algorithm: None where the log does not say (`run.started` without settings, or with those of a version
    that this one cannot read); what depends on them is then counted, not judged.
    """

    plan: Plan | None = None
    algorithm: AlgorithmSettings | None = None


def rules_of(settings: dict[str, Any]) -> Rules:
    """The rules in the settings of a `run.started`."""
    if not settings:
        return Rules()
    try:
        given = msgspec.convert(settings, TrainSettings)
        return Rules(make_plan(given.rollout, given.evaluation, given.trainer), given.algorithm)
    except (msgspec.ValidationError, ValueError):
        return Rules()
