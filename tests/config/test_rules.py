"""The rules at the fields of settings: each names settings that exist, and each is applied."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slime_events.algorithms.train_arguments import registered
from slime_events.core.config.fields import SettingsField, settings_fields
from slime_events.core.config.rule_checks import holds, problems, value_of, without_effect
from slime_events.core.config.rules import Act, Limits, Rule
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.values import Kind, fits

FIELDS = {field.name: field for field in settings_fields()}
RULES = [(field, rule) for field in settings_fields() for rule in field.rules]
VALID = [(field, rule) for field, rule in RULES if rule.act in (Act.NEEDS, Act.EXCLUDES)]
USED = [(field, rule) for field, rule in RULES if rule.act in (Act.UNUSED_WITHOUT, Act.UNUSED_WITH)]
BY_KIND: dict[Kind, object] = {Kind.BOOL: True, Kind.INT: 3, Kind.FLOAT: 0.5, Kind.JSON: {"a": 1}, Kind.STR: "x"}


def changed(field: SettingsField) -> object:
    """A value that is set, and not the field's default."""
    if field.type.choices:
        return next(choice for choice in field.type.choices if choice != field.default)
    value = (not field.default) if field.type.switch else BY_KIND[field.type.kinds[0]]
    return [value] if field.type.many else value


def with_value(settings: TrainSettings, field: SettingsField, value: object) -> TrainSettings:
    component = replace(getattr(settings, field.component), **{field.name: value})
    return replace(settings, **{field.component: component})


def met(settings: TrainSettings, condition: str) -> TrainSettings:
    """Settings where the condition holds."""
    name, _, value = condition.partition("=")
    field = FIELDS[name]
    wanted: object = int(value) if value.isdigit() else value
    if not value:
        wanted = field.default or changed(field)
    settings = with_value(settings, field, wanted)
    assert holds(condition, settings)
    return settings


def unmet(settings: TrainSettings, condition: str) -> TrainSettings:
    """Settings where the condition does not hold."""
    name, _, value = condition.partition("=")
    field = FIELDS[name]
    if holds(condition, settings):
        empty = None if field.default is None else type(field.default)()
        other = next((choice for choice in field.type.choices if str(choice) != value), 2 if value.isdigit() else "x")
        settings = with_value(settings, field, other if value else empty)
    assert not holds(condition, settings)
    return settings


def owned(field: SettingsField, rule: Rule) -> TrainSettings:
    """Settings for which the rule of the field applies; a rule on validity needs a setting with an effect."""
    settings = with_value(TrainSettings(), field, rule.value or changed(field))
    for other in field.rules if rule.act in (Act.NEEDS, Act.EXCLUDES) else ():
        if other.act is Act.UNUSED_WITHOUT:
            settings = met(settings, other.others[0])
    return settings


@pytest.mark.parametrize(("field", "rule"), RULES)
def test_a_rule_names_settings_and_values_that_exist(field: SettingsField, rule: Rule) -> None:
    for condition in rule.others:
        name, _, value = condition.partition("=")
        kind = registered().type_of(FIELDS[name])
        assert not value or fits(int(value) if value.isdigit() else value, kind)
    assert not rule.value or fits(rule.value, registered().type_of(field))
    assert rule.why or rule.act is Act.UNUSED_WITHOUT


@pytest.mark.parametrize(("field", "rule"), VALID)
def test_a_broken_rule_is_a_sentence_with_both_names(field: SettingsField, rule: Rule) -> None:
    settings = owned(field, rule)
    broken = settings
    for condition in rule.others if rule.act is Act.NEEDS else ():
        broken = unmet(broken, condition)
    for condition in rule.others if rule.act is Act.EXCLUDES else ():
        sentence = broken_by(field, rule, met(unsuppressed(field, rule, settings), condition))
        assert condition.replace("=", " ") in sentence
    if rule.act is Act.NEEDS:
        assert broken_by(field, rule, unsuppressed(field, rule, broken))


@pytest.mark.parametrize(("field", "rule"), [(field, rule) for field, rule in VALID if rule.act is Act.NEEDS])
def test_each_condition_of_a_rule_is_enough(field: SettingsField, rule: Rule) -> None:
    for condition in rule.others:
        settings = met(unsuppressed(field, rule, owned(field, rule)), condition)
        assert not [text for text in problems(settings) if text.startswith(field.name) and rule.why in text]


def unsuppressed(field: SettingsField, rule: Rule, settings: TrainSettings) -> TrainSettings:
    """Settings that break no earlier rule of the field."""
    for earlier in field.rules[: field.rules.index(rule)]:
        if earlier.act is Act.NEEDS and earlier.others != rule.others:
            settings = met(settings, earlier.others[0])
    return settings


def broken_by(field: SettingsField, rule: Rule, settings: TrainSettings) -> str:
    (sentence,) = (text for text in problems(settings) if text.startswith(field.name) and rule.why in text)
    assert sentence.endswith(".")
    return sentence


def test_a_setting_without_effect_conflicts_with_nothing() -> None:
    """Credit of agents' turns in a run without agents: the note says so, and the run starts."""
    settings = met(met(TrainSettings(), "agent_credit=discounted"), "advantage_estimator=ppo")
    assert not [text for text in problems(settings) if text.startswith("agent_credit")]
    assert [text for text in without_effect(settings) if "agent_credit" in text]
    assert [text for text in problems(met(settings, "agents")) if text.startswith("agent_credit")]


@pytest.mark.parametrize(("field", "rule"), USED)
def test_a_setting_without_effect_is_named(field: SettingsField, rule: Rule) -> None:
    if field.default == value_of(settings := owned(field, rule), field):
        pytest.fail("the value is the default")
    unmet_all = settings
    for condition in rule.others:
        unmet_all = unmet(unmet_all, condition)
    idle, used = (unmet_all, met(settings, rule.others[0]))
    if rule.act is Act.UNUSED_WITH:
        idle, used = used, idle
    for earlier in field.rules[: field.rules.index(rule)]:
        idle, used = met(idle, earlier.others[0]), met(used, earlier.others[0])
    for later in field.rules[field.rules.index(rule) + 1 :]:
        used = met(used, later.others[0])
    assert [text for text in without_effect(idle) if field.name in text.replace(",", "").split()]
    assert not [text for text in without_effect(used) if field.name in text.replace(",", "").split()]


@pytest.mark.parametrize(
    ("limits", "valid", "invalid"),
    [
        (Limits(above=0), (0.1, 9), (0, -1)),
        (Limits(least=0, most=1), (0, 0.5, 1), (-0.1, 1.1)),
        (Limits(least=0, below=1), (0, 0.9), (1, -1)),
        (Limits(above=1), (1.1,), (1,)),
        (Limits(), (-9, 0, 9), ()),
    ],
)
def test_a_number_is_within_its_limits(limits: Limits, valid: tuple[float, ...], invalid: tuple[float, ...]) -> None:
    assert [limits.problem("n", value) for value in (None, *valid)] == [None] * (1 + len(valid))
    for value in invalid:
        assert (limits.problem("n", value) or "").startswith(f"n is {value}: ")


@pytest.mark.parametrize("field", [field for field in settings_fields() if str(field.limits)])
def test_a_default_is_within_its_own_limits(field: SettingsField) -> None:
    assert isinstance(field.default, int | float | None)
    assert field.limits.problem(field.name, field.default) is None
