"""`actor_overrides`: slime's YAML file of Megatron settings for each role (`--megatron-config-path`)."""

from __future__ import annotations

import os
from typing import Any

from schemas.errors import InvalidValue
from schemas.references import REFERENCE
from slime_events.core.config.custom_config import read_yaml

FLAG = "--megatron-config-path"
_FORM = "a list `megatron` of entries with `name`, `role: actor` and `overrides: {setting: value}`"


def actor_overrides(path: str) -> dict[str, Any]:
    """Setting to value for the actor, `${VARIABLE}` in a text replaced. Later entries go over earlier ones.

    Raises InvalidValue for a file that cannot be read, has another form or another role, or names a variable that is
    not set.
    """
    entries = read_yaml(path, FLAG).get("megatron")
    if not isinstance(entries, list):
        raise InvalidValue(f"{FLAG} {path} should have {_FORM}.")
    found: dict[str, Any] = {}
    for entry in entries:
        overrides = entry.get("overrides", {}) if isinstance(entry, dict) else None
        if not isinstance(overrides, dict):
            raise InvalidValue(f"{FLAG} {path} should have {_FORM}.")
        if (role := entry.get("role")) != "actor":
            raise InvalidValue(f"{FLAG} {path}: role {role} has no settings of its own here: only actor has.")
        for name, value in overrides.items():
            found[name] = _set(value, f"{FLAG} {path}: {name}") if isinstance(value, str) else value
    return found


def _set(text: str, where: str) -> str:
    for variable in REFERENCE.findall(text):
        if variable not in os.environ:
            raise InvalidValue(f"{where} needs the environment variable {variable}, which is not set.")
    return REFERENCE.sub(lambda found: os.environ[found[1]], text)
