"""The rules at the fields of settings, applied: `problems` and `without_effect`."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from slime_events.core.config.fields import SettingsField, settings_fields
from slime_events.core.config.rules import Act, Rule
from slime_events.core.config.settings import TrainSettings


def problems(settings: TrainSettings) -> Iterator[str]:
    """Yield a sentence for each setting that is out of range, or conflicts with others by a rule at its field."""
    for field in settings_fields():
        value = value_of(settings, field)
        if isinstance(value, int | float) and (problem := field.limits.problem(field.name, value)):
            yield problem
        if any(_is_unused(rule, settings) for rule in field.rules):
            continue  # a setting without effect conflicts with nothing: `without_effect` names it
        for rule in field.rules:
            if _applies(field, rule, settings) and (sentence := _conflict(field, rule, settings)):
                yield sentence
                if rule.act is Act.NEEDS and not rule.value:
                    break  # the setting means nothing, so neither do its further rules


def without_effect(settings: TrainSettings) -> Iterator[str]:
    """Yield a sentence for each reason why changed settings have no effect."""
    names: dict[str, list[str]] = {}
    for field in settings_fields():
        if value_of(settings, field) == field.default:
            continue
        unused = (rule for rule in field.rules if _is_unused(rule, settings))
        if rule := next(unused, None):
            names.setdefault(reason(rule), []).append(field.name)
    for why, unused_names in names.items():
        yield f"{', '.join(unused_names)} {'has' if len(unused_names) == 1 else 'have'} no effect: {why}."


def value_of(settings: TrainSettings, field: SettingsField) -> object:
    """Return the value of a setting."""
    return getattr(getattr(settings, field.component), field.name)


def holds(condition: str, settings: TrainSettings) -> bool:
    """Return whether a condition of a rule holds. Raises KeyError for an unknown setting."""
    name, _, expected = condition.partition("=")
    if name == "gateway":  # the value `off` turns it off in a resumed run
        return settings.gateway.listens is not None
    value = value_of(settings, _fields()[name])
    return str(value) == expected if expected else bool(value)


def reason(rule: Rule) -> str:
    """Return why a rule exists, for a message."""
    if rule.why:
        return rule.why
    (name, _, value), *more = (other.partition("=") for other in rule.others)
    if value:
        return f"{name} is not {value}"
    return f"{name} is not set" if not more else f"neither {' nor '.join(rule.others)} is set"


def _applies(field: SettingsField, rule: Rule, settings: TrainSettings) -> bool:
    value = value_of(settings, field)
    return str(value) == rule.value if rule.value else bool(value)


def _conflict(field: SettingsField, rule: Rule, settings: TrainSettings) -> str | None:
    """Return the sentence of a rule that is broken; None if it is not, or is not about validity."""
    matches = [other for other in rule.others if holds(other, settings)]
    owner = _shown(field, rule, settings)
    if rule.act is Act.EXCLUDES and matches:
        return f"{owner} excludes {', '.join(other.replace('=', ' ') for other in matches)}: {rule.why}."
    if rule.act is Act.NEEDS and not matches:
        other = _fields()[rule.others[0].partition("=")[0]]
        if other.default is True and other.negative:  # a user set the flag that turns it off
            return f"{owner} excludes {other.negative.removeprefix('--').replace('-', '_')}: {rule.why}."
        return f"{owner} needs {' or '.join(other.replace('=', ' ') for other in rule.others)}: {rule.why}."
    return None


def _is_unused(rule: Rule, settings: TrainSettings) -> bool:
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
