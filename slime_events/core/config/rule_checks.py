"""The rules at the fields of settings, applied: `problems` and `without_effect`."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterator

from slime_events.core.config.fields import Registered, SettingsField, settings_fields
from slime_events.core.config.rules import Act, Rule
from slime_events.core.config.settings import TrainSettings

_COMPARED = {
    Act.AT_MOST: (operator.le, "above"),
    Act.AT_LEAST: (operator.ge, "below"),
    Act.BELOW: (operator.lt, "not below"),
    Act.EQUALS: (operator.eq, "not"),
}
"""A comparison of two numbers: the function that must hold, and the words for the opposite."""


def problems(settings: TrainSettings, registered: Registered) -> Iterator[str]:
    """Yield a sentence for each setting that is out of range, or conflicts with others by a rule at its field.

    A setting without effect conflicts with nothing: `without_effect` names it.
    """
    for field in settings_fields():
        value, rules = value_of(settings, field), tuple(registered.rules_of(field))
        if field.name.endswith("_path") and value in ("", [""]):
            yield f"{field.flag} is empty: name a function, or leave the flag out."
        if any(_is_unused(rule, settings) for rule in rules):
            continue
        if isinstance(value, int | float) and (problem := field.limits.problem(field.name, value)):
            yield problem
        for rule in rules:
            if _applies(field, rule, settings) and (sentence := _conflict(field, rule, settings)):
                yield sentence
                if rule.act is Act.NEEDS and not rule.value:
                    break  # the setting means nothing, so neither do its further rules


def without_effect(settings: TrainSettings, registered: Registered) -> Iterator[str]:
    """Yield a sentence for each reason why changed settings have no effect. settings: derived."""
    names: dict[str, list[str]] = {}
    for field in settings_fields():
        if value_of(settings, field) == _unset_value(settings, field):
            continue
        unused = (rule for rule in registered.rules_of(field) if _is_unused(rule, settings))
        if rule := next(unused, None):
            names.setdefault(reason(rule, settings), []).append(field.name)
    for why, unused_names in names.items():
        yield f"{', '.join(unused_names)} {'has' if len(unused_names) == 1 else 'have'} no effect: {why}."


def value_of(settings: TrainSettings, field: SettingsField) -> object:
    """Return the value of a setting."""
    return getattr(getattr(settings, field.component), field.name)


def holds(condition: str, settings: TrainSettings) -> bool:
    """Return whether a condition of a rule holds. Raises KeyError for an unknown setting."""
    name, operation, expected = _parts(condition)
    if name == "gateway":  # the value `off` turns it off in a resumed run
        return settings.gateway.listens is not None
    value = value_of(settings, _fields()[name])
    return (str(value) == expected) is (operation == "=") if operation else bool(value)


def reason(rule: Rule, settings: TrainSettings | None = None) -> str:
    """Return why a rule exists, for a message. settings: values to insert; None: none, for a document."""
    if rule.why:
        return re.sub(r"\{(\w+)\}", lambda name: _named(name[1], settings), rule.why)
    (name, _, value), *more = (other.partition("=") for other in rule.others)
    if value:
        return f"{name} is not {value}"
    return f"{name} is not set" if not more else f"neither {' nor '.join(rule.others)} is set"


def _applies(field: SettingsField, rule: Rule, settings: TrainSettings) -> bool:
    value = value_of(settings, field)
    if rule.act in _COMPARED:
        return True
    return str(value) == rule.value if rule.value else bool(value)


def _unset_value(settings: TrainSettings, field: SettingsField) -> object:
    """Return the value of a setting that the user did not set: the default, or one that `derive` takes from others."""
    if field.name == "eps_clip_high":
        return settings.algorithm.eps_clip
    if field.name == "grpo_std_normalization" and settings.rollout.n_samples_per_prompt == 1:
        return False
    return field.default


def _parts(condition: str) -> tuple[str, str, str]:
    """Return name, operation (`=`, `!=` or empty) and value of a condition."""
    name, operation, value = condition.partition("!=" if "!=" in condition else "=")
    return name, operation, value


def _named(name: str, settings: TrainSettings | None) -> str:
    return f"this {name}" if settings is None else f"{name} {value_of(settings, _fields()[name])}"


def _conflict(field: SettingsField, rule: Rule, settings: TrainSettings) -> str | None:
    """Return the sentence of a rule that is broken; None if it is not, or is not about validity."""
    if any(holds(condition, settings) for condition in rule.unless):
        return None
    if rule.act in _COMPARED:
        return _compared(field, rule, settings)
    matches = [other for other in rule.others if holds(other, settings)]
    owner = _shown(field, rule, settings)
    if rule.act is Act.EXCLUDES and matches:
        return f"{owner} excludes {', '.join(_words(other, settings) for other in matches)}: {rule.why}."
    if rule.act is Act.NEEDS and not matches:
        other = _fields()[_parts(rule.others[0])[0]]
        if other.default is True and other.negative:  # a user set the flag that turns it off
            return f"{owner} excludes {other.negative.removeprefix('--').replace('-', '_')}: {rule.why}."
        return f"{owner} needs {' or '.join(other.replace('=', ' ') for other in rule.others)}: {rule.why}."
    return None


def _compared(field: SettingsField, rule: Rule, settings: TrainSettings) -> str | None:
    (other,) = rule.others
    value, limit = value_of(settings, field), value_of(settings, _fields()[other])
    function, opposite = _COMPARED[rule.act]
    if not isinstance(value, int | float) or not isinstance(limit, int | float) or function(value, limit):
        return None
    return f"{field.name} {value} is {opposite} {other} {limit}: {rule.why}."


def _words(condition: str, settings: TrainSettings) -> str:
    """Return a condition that holds, for a message: with the value, if it is about the value."""
    name, operation, _ = _parts(condition)
    return f"{name} {value_of(settings, _fields()[name])}" if operation else name


def _is_unused(rule: Rule, settings: TrainSettings) -> bool:
    if any(holds(condition, settings) for condition in rule.unless):
        return False
    is_met = any(holds(other, settings) for other in rule.others)
    return (rule.act is Act.UNUSED_WITHOUT and not is_met) or (rule.act is Act.UNUSED_WITH and is_met)


def _shown(field: SettingsField, rule: Rule, settings: TrainSettings) -> str:
    """Return the setting's name, with its value if that says more than that it is set."""
    value = value_of(settings, field)
    says_more = rule.value or (isinstance(value, int | float) and not isinstance(value, bool))
    return f"{field.name} {value}" if says_more else field.name


@functools.cache
def _fields() -> dict[str, SettingsField]:
    return {field.name: field for field in settings_fields()}
