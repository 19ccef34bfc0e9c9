"""`SettingsField`: a field of a settings struct, with its flag."""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.values import ValueType, of_annotation

COMPONENTS: dict[str, type[msgspec.Struct]] = {one.name: one.type for one in msgspec.structs.fields(TrainSettings)}
"""The components, which are the tables in TOML, and their structs."""
# Filled by flags of other packages, by name; they have no flag of their own.
PASS_THROUGH = {("trainer", "megatron"), ("engine", "sglang")}
# slime's names for switching off a default; any other switch has `--no-` before its name.
DISABLE_NAMES = {
    "rewards_normalization": "--disable-rewards-normalization",
    "grpo_std_normalization": "--disable-grpo-std-normalization",
    "wandb_random_suffix": "--disable-wandb-random-suffix",
    "compute_advantages_and_returns": "--disable-compute-advantages-and-returns",
    "rollout_global_dataset": "--disable-rollout-global-dataset",
}


@dataclass(frozen=True, slots=True)
class Registered:
    """What only rooms to the right know of settings: they have the registries that some settings name an entry of.

    choices: the names in a registry, by component and field. impossible: a sentence for each thing that cannot be.
    idle: one for settings that have no effect.
    """

    choices: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    impossible: Callable[[TrainSettings], Iterable[str]] = lambda settings: ()
    idle: Callable[[TrainSettings], Iterable[str]] = lambda settings: ()

    def type_of(self, known: SettingsField) -> ValueType:
        """What a field can hold."""
        names = self.choices.get((known.component, known.name))
        return replace(known.type, choices=names) if names else known.type


NOTHING_REGISTERED = Registered()


@dataclass(frozen=True, slots=True)
class SettingsField:
    """component: its table in TOML. above, least: its range."""

    component: str
    name: str
    type: ValueType
    description: str
    default: Any
    above: int | None = None
    least: int | None = None

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
    for component, defaults in msgspec.structs.asdict(TrainSettings()).items():
        for name, hint in typing.get_type_hints(COMPONENTS[component], include_extras=True).items():
            if (component, name) not in PASS_THROUGH:
                meta, default = typing.get_args(hint)[1], getattr(defaults, name)
                known = SettingsField(component, name, of_annotation(hint), meta.description, default, **meta.extra)
                fields.append(known)
    return tuple(fields)


@functools.cache
def honoured() -> dict[str, tuple[SettingsField, ...]]:
    """Every flag of our own, positive or negative, with the fields that it sets."""
    flags: dict[str, tuple[SettingsField, ...]] = {}
    for known in settings_fields():
        for flag in filter(None, (known.flag, known.negative)):
            flags[flag] = (*flags.get(flag, ()), known)
    return flags
