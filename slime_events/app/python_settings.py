"""Check settings that a Python program builds, derive their values as from a command line, and print them as TOML."""

from pathlib import PurePath
from typing import Any

import msgspec

from schemas.errors import InvalidValue
from slime_events.algorithms.train_arguments import parse_train
from slime_events.core.config.secrets import kept
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.toml import settings_from, to_toml

SOURCE = "TrainSettings"
"""Name of the settings in errors, instead of the path of a file."""


def check_settings(settings: TrainSettings) -> TrainSettings:
    """Return the settings with every derived value, as `slime-events train` derives them from flags.

    Paths may be `pathlib` paths. Raises InvalidValue for a value that the field does not allow, ImpossibleCombination
    with a sentence for each problem.
    """
    text = to_toml(settings_from(_values(settings)))
    return parse_train(("--config", SOURCE), read=lambda _: text).settings


def settings_toml(settings: TrainSettings) -> str:
    """Return the settings as the TOML that `slime-events train --config FILE` reads.

    A secret is written as a reference, and becomes a variable of this process. Raises as `check_settings`.
    """
    return to_toml(settings_from(kept(_values(check_settings(settings)))))


def _values(settings: TrainSettings) -> dict[str, Any]:
    try:
        values: dict[str, Any] = msgspec.to_builtins(settings, enc_hook=_builtin)
    except (TypeError, msgspec.ValidationError) as error:
        raise InvalidValue(f"A setting has a value of a wrong type: {error}") from error
    return values


def _builtin(value: object) -> str:
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"{value!r} is a {type(value).__name__}")
