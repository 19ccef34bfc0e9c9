"""The settings of a run as its log has them, and how two runs' settings differ."""

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
    """The settings of run.started with the changes of later resumptions. Raises ConfigError for invalid ones."""
    values: dict[str, dict[str, Any]] = {}
    for event in run_events:
        if isinstance(event, RunStarted | RunResumed):
            for component, fields in event.settings.items():
                values.setdefault(component, {}).update(fields)
    return settings_from(values)


def nats_place(run: RunSettings) -> NatsPlace | None:
    """The NATS server of the user's own; None where the run has one in its folder."""
    if not run.nats_url:
        return None
    files = {"tls_ca": run.nats_tls_ca, "tls_cert": run.nats_tls_cert, "tls_key": run.nats_tls_key}
    return NatsPlace(url=run.nats_url, creds=run.nats_creds, **files)


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
