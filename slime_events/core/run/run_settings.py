"""Read the settings of a run from its log, and compare the settings of two runs."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from schemas.event import Event
from schemas.runs import RunResumed, RunStarted
from slime_events.core.config.secrets import concealed
from slime_events.core.config.settings import RunSettings, TrainSettings
from slime_events.core.config.toml import settings_from
from storage.jetstream.address import NatsPlace


def settings_in_force(run_events: Iterable[Event]) -> TrainSettings:
    """Return the settings of run.started with the changes of later resumptions. Raises ConfigError if invalid."""
    values: dict[str, dict[str, Any]] = {}
    for event in run_events:
        if isinstance(event, RunStarted | RunResumed):
            for component, fields in event.settings.items():
                values.setdefault(component, {}).update(fields)
    return settings_from(values)


def nats_place(run: RunSettings) -> NatsPlace | None:
    """Return the user's NATS server; None if the run has its own in its folder."""
    if not run.nats_url:
        return None
    files = {"tls_ca": run.nats_tls_ca, "tls_cert": run.nats_tls_cert, "tls_key": run.nats_tls_key}
    return NatsPlace(url=run.nats_url, creds=run.nats_creds, **files)


class Difference(NamedTuple):
    """A setting whose value differs between two runs, with both values as plain data."""

    component: str
    field: str
    before: object
    after: object


def differences(before: TrainSettings, after: TrainSettings) -> list[Difference]:
    """Return the settings whose values differ, in the order of the structs; a secret equals the reference to it."""
    old, new = concealed(msgspec.to_builtins(before)), concealed(msgspec.to_builtins(after))
    return [Difference(c, f, old[c][f], value) for c in new for f, value in new[c].items() if value != old[c][f]]


def flag_of(field: str) -> str:
    """Return the flag of a field."""
    return "--" + field.replace("_", "-")
