"""`SettingsField`: a field of a settings struct, with its flag."""

from __future__ import annotations

import functools
import typing
from dataclasses import dataclass
from typing import Any

import msgspec

from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.values import ValueType, of_annotation

# Filled by flags of other packages, by name; they have no flag of their own.
PASS_THROUGH = {("trainer", "megatron"), ("engine", "sglang")}
# slime's names for switching off a default; any other switch has `--no-` before its name.
DISABLE_NAMES = {
    "rewards_normalization": "--disable-rewards-normalization",
    "grpo_std_normalization": "--disable-grpo-std-normalization",
}


@dataclass(frozen=True, slots=True)
class SettingsField:
    """component: its table in TOML."""

    component: str
    name: str
    type: ValueType
    description: str
    default: Any

    @property
    def flag(self) -> str:
        """The flag that sets it (for a switch: to true)."""
        return "--" + self.name.replace("_", "-")

    @property
    def negative(self) -> str | None:
        """The flag that sets a switch to false."""
        if not self.type.switch:
            return None
        return DISABLE_NAMES.get(self.name, "--no-" + self.name.replace("_", "-"))

    @property
    def usual_flag(self) -> str:
        """The flag to show: the one that changes the default."""
        return self.negative if self.negative and self.default is True else self.flag


@functools.cache
def settings_fields() -> tuple[SettingsField, ...]:
    """All fields in the order of the structs; a field that two components share comes once for each."""
    fields = []
    for component in msgspec.structs.fields(TrainSettings):
        hints = typing.get_type_hints(component.type, include_extras=True)
        for field in msgspec.structs.fields(component.type):
            if (component.name, field.name) in PASS_THROUGH:
                continue
            hint = hints[field.name]
            default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()  # type: ignore[operator, misc, unused-ignore]
            fields.append(SettingsField(component.name, field.name, of_annotation(hint), _description(hint), default))
    return tuple(fields)


@functools.cache
def honoured() -> dict[str, tuple[SettingsField, ...]]:
    """Every flag of our own, positive or negative, with the fields that it sets."""
    flags: dict[str, tuple[SettingsField, ...]] = {}
    for field in settings_fields():
        for flag in filter(None, (field.flag, field.negative)):
            flags[flag] = (*flags.get(flag, ()), field)
    return flags


def component_names() -> tuple[str, ...]:
    """The components: the tables in TOML."""
    return tuple(field.name for field in msgspec.structs.fields(TrainSettings))


def component_type(component: str) -> type[msgspec.Struct]:
    """The struct of a component."""
    found: type[msgspec.Struct] = next(f.type for f in msgspec.structs.fields(TrainSettings) if f.name == component)
    return found


def _description(hint: Any) -> str:
    metas = [one for one in typing.get_args(hint)[1:] if isinstance(one, msgspec.Meta)]
    return next((meta.description for meta in metas if meta.description), "")
