"""The settings of a run as its log has them, and how two runs' settings differ."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from schemas.event import Event
from schemas.runs import RunResumed, RunStarted
from slime_events.core.config.secrets import concealed
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.toml import settings_from


def settings_in_force(run_events: Iterable[Event]) -> TrainSettings:
    """The settings of run.started with the changes of later resumptions. Raises ConfigError for invalid ones."""
    values: dict[str, dict[str, Any]] = {}
    for event in run_events:
        if isinstance(event, RunStarted | RunResumed):
            for component, fields in event.settings.items():
                values.setdefault(component, {}).update(fields)
    return settings_from(values)


class Difference(NamedTuple):
    """A setting that two runs have with other values, as plain values."""

    component: str
    field: str
    before: Any
    after: Any


def differences(before: TrainSettings, after: TrainSettings) -> list[Difference]:
    """The settings whose values differ, in the order of the structs; a secret and the reference to it are equal."""
    old, new = concealed(msgspec.to_builtins(before)), concealed(msgspec.to_builtins(after))
    return [Difference(c, f, old[c][f], value) for c in new for f, value in new[c].items() if value != old[c][f]]


def flag_of(field: str) -> str:
    """A field as it stands on a command line."""
    return "--" + field.replace("_", "-")
