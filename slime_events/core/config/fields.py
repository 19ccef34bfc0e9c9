"""`SettingsField`: a field of a settings struct, with its flag."""

from __future__ import annotations

import functools
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

import msgspec

from schemas.doc import doc
from slime_events.core.config.base import Settings
from slime_events.core.config.rules import Later, Limits, Rule
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.values import ValueType, of_annotation

COMPONENTS: dict[str, type[Settings]] = {
    component.name: component.type for component in msgspec.structs.fields(TrainSettings)
}
"""Component (the name of its TOML table) to settings struct."""
# Filled by flags of other packages; they have no flag themselves.
PASS_THROUGH = {("trainer", "megatron"), ("engine", "sglang")}
# slime's names for flags that switch off a default; the negative of any other switch begins with `--no-`.
DISABLE_NAMES = {
    "rewards_normalization": "--disable-rewards-normalization",
    "grpo_std_normalization": "--disable-grpo-std-normalization",
    "wandb_random_suffix": "--disable-wandb-random-suffix",
    "compute_advantages_and_returns": "--disable-compute-advantages-and-returns",
    "rollout_global_dataset": "--disable-rollout-global-dataset",
}


@dataclass(frozen=True, slots=True)
class Registered:
    """Facts about settings that need registries of packages which import this one, such as the names of estimators."""

    choices: Annotated[Mapping[tuple[str, str], tuple[str, ...]], doc("(component, field) to the valid names")] = field(
        default_factory=dict
    )
    capabilities: Annotated[
        Mapping[str, tuple[str, ...]], doc("`field:capability` to the valid names that declare the capability")
    ] = field(default_factory=dict)

    def type_of(self, setting: SettingsField) -> ValueType:
        """Return the type of a setting, with the registered choices if there are any."""
        names = self.choices.get((setting.component, setting.name))
        return replace(setting.type, choices=names) if names else setting.type

    def rules_of(self, setting: SettingsField) -> Iterator[Rule]:
        """Yield the rules of a setting, with `name=value` conditions for each capability.

        A rule about a capability is left out if nothing is registered that could declare it.
        """
        for rule in setting.rules:
            owner = f"{setting.name}{rule.value}" if rule.value.startswith(":") else ""
            if all(name in self.capabilities for name in (*rule.others, *rule.unless, owner) if ":" in name):
                rule = replace(rule, others=self._expanded(rule.others), unless=self._expanded(rule.unless))
                values = self.capabilities[owner] if owner else (rule.value,)
                yield from (replace(rule, value=value) for value in values)

    def _expanded(self, conditions: tuple[str, ...]) -> tuple[str, ...]:
        """Return the conditions, with one for each name that declares a capability in place of the capability."""
        expanded = list[str]()
        for condition in conditions:
            name, capability = condition.partition(":")[::2]
            names = self.capabilities[condition] if capability else ()
            expanded += [f"{name}={choice}" for choice in names] if capability else [condition]
        return tuple(expanded)


NOTHING_REGISTERED = Registered()


@dataclass(frozen=True, slots=True)
class SettingsField:
    """A setting: a field of a component's struct, with its flags."""

    component: Annotated[str, doc("component, which is also the name of the TOML table")]
    name: str
    type: ValueType
    description: str
    default: Annotated[object, doc("default value, of any type that a setting can have")]
    limits: Annotated[Limits, doc("range of a number")]
    rules: Annotated[tuple[Rule, ...], doc("what the setting requires of others")]
    later: Annotated[Later, doc("commands that may change it when they use a recorded run")]

    @property
    def flag(self) -> str:
        """The flag that sets the field; for a switch, to true."""
        return "--" + self.name.replace("_", "-")

    @property
    def negative(self) -> str | None:
        """The flag that sets a switch to false."""
        if not self.type.switch:
            return None
        return DISABLE_NAMES.get(self.name, "--no-" + self.name.replace("_", "-"))

    @property
    def usual_flag(self) -> str:
        """The flag to show: of a switch that is on by default, the negative."""
        return self.negative if self.negative and self.default is True else self.flag


@functools.cache
def settings_fields() -> tuple[SettingsField, ...]:
    """Return all settings in the order of the structs; a field of two components has two entries."""
    fields = []
    for component, defaults in msgspec.structs.asdict(TrainSettings()).items():
        for name, hint in typing.get_type_hints(COMPONENTS[component], include_extras=True).items():
            if (component, name) not in PASS_THROUGH:
                meta, default = typing.get_args(hint)[1], getattr(defaults, name)
                extra = meta.extra
                later = (COMPONENTS[component].LATER | extra["also"]) & ~extra["never"]
                fields.append(
                    SettingsField(
                        component,
                        name,
                        of_annotation(hint),
                        meta.description,
                        default,
                        extra["limits"],
                        extra["rules"],
                        later,
                    )
                )
    return tuple(fields)


def unchangeable(changed: Iterable[tuple[str, str]], later: Later) -> list[str]:
    """Return the flags of the settings, given as (component, field), that a command may not change.

    Further flags of Megatron and SGLang have the rule of their component.
    """
    by_name = {(field.component, field.name): field.later for field in settings_fields()}
    return [
        "--" + name.replace("_", "-")
        for component, name in changed
        if not later & by_name.get((component, name), COMPONENTS[component].LATER)
    ]


def changeable(later: Later) -> list[str]:
    """Return the flags of the settings that a command may change, sorted."""
    return sorted(field.flag for field in settings_fields() if later & field.later)


@functools.cache
def honoured() -> dict[str, tuple[SettingsField, ...]]:
    """Return each flag of a setting, positive or negative, with the fields that it sets."""
    flags: dict[str, tuple[SettingsField, ...]] = {}
    for setting in settings_fields():
        for flag in filter(None, (setting.flag, setting.negative)):
            flags[flag] = (*flags.get(flag, ()), setting)
    return flags
