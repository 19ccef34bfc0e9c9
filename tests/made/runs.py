"""Events of a run's beginning and end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from schemas.placements import PlacementPlanned
from schemas.runs import FinishReason, RunFinished, RunResumed, RunStarted


def started(settings: Mapping[str, Any] | msgspec.Struct | None = None, **fields: Any) -> RunStarted:
    """Return the first event of a log. The settings may be a `TrainSettings`."""
    values = msgspec.to_builtins(settings or {})
    return RunStarted(settings=values, **({"code_version": ""} | fields))


def resumed(incarnation: int = 1, **fields: Any) -> RunResumed:
    return RunResumed(incarnation=incarnation, **({"code_version": ""} | fields))


def finished(reason: FinishReason = FinishReason.ALL_STEPS, **fields: Any) -> RunFinished:
    plain: dict[str, Any] = {"steps": 1, "events": 1, "state_digest": ""}
    return RunFinished(reason=reason, **(plain | fields))


def placement(incarnation: int = 0, **fields: Any) -> PlacementPlanned:
    plain: dict[str, Any] = {"device": "cpu", "ranks": 1, "together": 1, "engines": 1, "each": 0}
    return PlacementPlanned(incarnation=incarnation, **(plain | fields))
