"""`role_overrides`: slime's YAML file of Megatron settings per role (`--megatron-config-path`)."""

from __future__ import annotations

import os
from typing import Any

from schemas.errors import InvalidValue
from schemas.references import REFERENCE
from slime_events.core.config.custom_config import read_yaml

FLAG = "--megatron-config-path"
_FORM = "a list `megatron` of entries with `name`, `role: actor` or `critic`, and `overrides: {setting: value}`"
_CRITIC = {"lr": "critic_lr", "lr_warmup_iters": "critic_lr_warmup_iters", "load": "critic_load"}
"""Settings that a critic may have, and their names here; it shares all the actor's further settings."""


def role_overrides(path: str) -> dict[str, Any]:
    """Return setting to value, with each `${VARIABLE}` replaced. Later entries override earlier ones.

    Raises InvalidValue if the file cannot be read, has the wrong form or an unknown role, has a setting that a critic
    cannot have, or names a variable that is not set.
    """
    entries = read_yaml(path, FLAG).get("megatron")
    if not isinstance(entries, list):
        raise InvalidValue(f"{FLAG} {path} must have {_FORM}.")
    settings: dict[str, Any] = {}
    for entry in entries:
        overrides = entry.get("overrides", {}) if isinstance(entry, dict) else None
        if not isinstance(overrides, dict):
            raise InvalidValue(f"{FLAG} {path} must have {_FORM}.")
        if (role := entry.get("role")) not in ("actor", "critic"):
            raise InvalidValue(f"{FLAG} {path}: role {role} has no settings here: use actor or critic.")
        for setting, value in overrides.items():
            name = _CRITIC.get(setting) if role == "critic" else setting
            if name is None:
                own = ", ".join(_CRITIC)
                raise InvalidValue(f"{FLAG} {path}: the critic has the actor's {setting}. It may differ in: {own}.")
            settings[name] = _set(value, f"{FLAG} {path}: {name}") if isinstance(value, str) else value
    return settings


def _set(text: str, where: str) -> str:
    for variable in REFERENCE.findall(text):
        if variable not in os.environ:
            raise InvalidValue(f"{where} needs the environment variable {variable}, which is not set.")
    return REFERENCE.sub(lambda match: os.environ[match[1]], text)
