"""The settings of a run, as its log says them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from schemas.event import Event
from schemas.runs import RunResumed, RunStarted
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.toml import settings_from


def settings_in_force(run_events: Iterable[Event]) -> TrainSettings:
    """Those of run.started, with what resumptions have changed since. Raises ConfigError for what they cannot be."""
    values: dict[str, dict[str, Any]] = {}
    for event in run_events:
        if isinstance(event, RunStarted | RunResumed):
            for component, fields in event.settings.items():
                values.setdefault(component, {}).update(fields)
    return settings_from(values)
