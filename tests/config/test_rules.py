"""The rules at the fields of settings: each names settings that exist, and each is applied."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slime_events.algorithms.train_arguments import registered
from slime_events.core.config.fields import NOTHING_REGISTERED, SettingsField, changeable, settings_fields, unchangeable
from slime_events.core.config.rule_checks import holds, problems, reason, value_of, without_effect
from slime_events.core.config.rules import Act, Later, Limits, Rule
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.values import Kind, fits

REGISTERED = registered()
FIELDS = {field.name: field for field in settings_fields()}
RULES = [(field, rule) for field in settings_fields() for rule in REGISTERED.rules_of(field)]
VALID = [(field, rule) for field, rule in RULES if rule.act in (Act.NEEDS, Act.EXCLUDES)]
USED = [(field, rule) for field, rule in RULES if rule.act in (Act.UNUSED_WITHOUT, Act.UNUSED_WITH)]
COMPARED = [(field, rule) for field, rule in RULES if (field, rule) not in (*VALID, *USED)]
BY_KIND: dict[Kind, object] = {Kind.BOOL: True, Kind.INT: 3, Kind.FLOAT: 0.5, Kind.JSON: {"a": 1}, Kind.STR: "x"}
SIDES: dict[Act, tuple[float, float]] = {
    Act.AT_MOST: (5, 6),
    Act.AT_LEAST: (5, 4),
    Act.BELOW: (4, 5),
    Act.EQUALS: (5, 4),
}
"""A number that follows the rule if the other setting is 5, and one that breaks it."""


def changed(field: SettingsField) -> object:
    """Return a value that is set, and not the field's default."""
    if field.type.choices:
        return next(choice for choice in field.type.choices if choice != field.default)
    value = (not field.default) if field.type.switch else BY_KIND[field.type.kinds[0]]
    return [value] if field.type.many else value


def with_value(settings: TrainSettings, field: SettingsField, value: object) -> TrainSettings:
    component = replace(getattr(settings, field.component), **{field.name: value})
    return replace(settings, **{field.component: component})


def parts(condition: str) -> tuple[SettingsField, str, str]:
    """Return field, operation and value of a condition."""
    name, operation, value = condition.partition("!=" if "!=" in condition else "=")
    return FIELDS[name], operation, value


def met(settings: TrainSettings, condition: str) -> TrainSettings:
    """Return settings with which the condition holds."""
    field, operation, value = parts(condition)
    if holds(condition, settings):
        return settings
    number: object = int(value) if value.isdigit() else value
    values = {"=": number, "!=": 2, "": field.default or changed(field)}
    settings = with_value(settings, field, values[operation])
    assert holds(condition, settings)
    return settings


def unmet(settings: TrainSettings, condition: str) -> TrainSettings:
    """Return settings with which the condition does not hold."""
    field, operation, value = parts(condition)
    if holds(condition, settings):
        empty = None if field.default is None else type(field.default)()
        number = int(value) if value.isdigit() else value
        other = next((choice for choice in field.type.choices if str(choice) != value), 2 if value.isdigit() else "x")
        settings = with_value(settings, field, {"=": other, "!=": number, "": empty}[operation])
    assert not holds(condition, settings)
    return settings


def in_use(field: SettingsField, settings: TrainSettings) -> TrainSettings:
    """Return settings with which the field has an effect."""
    for rule in REGISTERED.rules_of(field):
        if rule.act is Act.UNUSED_WITHOUT:
            settings = met(settings, rule.others[0])
        if rule.act is Act.UNUSED_WITH:
            settings = unmet(settings, rule.others[0])
    return settings


def owned(field: SettingsField, rule: Rule) -> TrainSettings:
    """Return settings for which a rule applies."""
    return in_use(field, with_value(TrainSettings(), field, rule.value or changed(field)))


def sentences(field: SettingsField, rule: Rule, settings: TrainSettings) -> list[str]:
    """Return the sentences about a rule that is broken."""
    every = problems(settings, REGISTERED)
    return [text for text in every if text.startswith(field.name) and rule.why in text and " it must be " not in text]


def broken_by(field: SettingsField, rule: Rule, settings: TrainSettings) -> str:
    (sentence,) = sentences(field, rule, settings)
    assert sentence.endswith(".")
    return sentence


def notes(field: SettingsField, settings: TrainSettings) -> list[str]:
    """Return the notes that the field has no effect."""
    return [text for text in without_effect(settings, REGISTERED) if field.name in text.partition(" ha")[0].split(", ")]


@pytest.mark.parametrize(("field", "rule"), RULES)
def test_a_rule_names_settings_and_values_that_exist(field: SettingsField, rule: Rule) -> None:
    for condition in (*rule.others, *rule.unless):
        other, _, value = parts(condition)
        kind = REGISTERED.type_of(other)
        assert not value or fits(int(value) if value.isdigit() else value, kind)
    assert not rule.value or fits(rule.value, REGISTERED.type_of(field))
    assert rule.why or rule.act is Act.UNUSED_WITHOUT


def test_each_capability_is_declared_and_used() -> None:
    conditions = {
        condition
        for field in settings_fields()
        for rule in field.rules
        for condition in (*rule.others, *rule.unless, f"{field.name}{rule.value}")
        if ":" in condition
    }
    assert conditions == set(REGISTERED.capabilities)


def test_rules_about_capabilities_are_left_out_if_nothing_is_registered() -> None:
    own = [rule for field in settings_fields() for rule in NOTHING_REGISTERED.rules_of(field)]
    assert not any(":" in condition for rule in own for condition in (*rule.others, *rule.unless, rule.value))
    assert 0 < len(own) < len(RULES)


@pytest.mark.parametrize(("field", "rule"), VALID)
def test_a_broken_rule_is_a_sentence_with_both_names(field: SettingsField, rule: Rule) -> None:
    settings = owned(field, rule)
    broken = settings
    for condition in rule.others if rule.act is Act.NEEDS else ():
        broken = unmet(broken, condition)
    for condition in rule.others if rule.act is Act.EXCLUDES else ():
        sentence = broken_by(field, rule, met(unsuppressed(field, rule, settings), condition))
        other, _, value = parts(condition)
        assert f"{other.name} {value}".rstrip() in sentence or "!=" in condition
    if rule.act is Act.NEEDS:
        assert broken_by(field, rule, unsuppressed(field, rule, broken))


@pytest.mark.parametrize(("field", "rule"), [(field, rule) for field, rule in VALID if rule.act is Act.NEEDS])
def test_each_condition_of_a_rule_is_enough(field: SettingsField, rule: Rule) -> None:
    for condition in rule.others:
        settings = met(unsuppressed(field, rule, owned(field, rule)), condition)
        assert not sentences(field, rule, settings)


def unsuppressed(field: SettingsField, rule: Rule, settings: TrainSettings) -> TrainSettings:
    """Return settings that break no earlier rule of the field."""
    rules = tuple(REGISTERED.rules_of(field))
    for earlier in rules[: rules.index(rule)]:
        if earlier.act is Act.NEEDS and earlier.others != rule.others:
            settings = met(settings, earlier.others[0])
    return settings


@pytest.mark.parametrize(("field", "rule"), COMPARED)
def test_a_number_is_compared_with_another(field: SettingsField, rule: Rule) -> None:
    valid, broken = SIDES[rule.act]
    settings = with_value(owned(field, rule), FIELDS[rule.others[0]], 5)
    assert not sentences(field, rule, with_value(settings, field, valid))
    sentence = broken_by(field, rule, with_value(settings, field, broken))
    assert f"{field.name} {broken} is " in sentence
    assert f" {rule.others[0]} 5: " in sentence
    for name in (field.name, rule.others[0]):
        if FIELDS[name].default is None:
            assert not sentences(field, rule, with_value(with_value(settings, field, broken), FIELDS[name], None))


@pytest.mark.parametrize(("field", "rule"), [(field, rule) for field, rule in RULES if rule.unless])
def test_a_rule_does_not_apply_if_it_says_so(field: SettingsField, rule: Rule) -> None:
    settings = unsuppressed(field, rule, owned(field, rule))
    for condition in rule.others:
        breaks = rule.act in (Act.NEEDS, Act.UNUSED_WITHOUT)
        settings = unmet(settings, condition) if breaks else met(settings, condition)
    for condition in rule.unless:
        exempt = met(settings, condition)
        assert not sentences(field, rule, exempt)
        assert not [text for text in notes(field, exempt) if reason(rule, exempt) in text]


def test_a_setting_without_effect_conflicts_with_nothing() -> None:
    """Credit of agents' turns in a run without agents: the note says so, and the run starts."""
    settings = met(met(TrainSettings(), "agent_credit=discounted"), "advantage_estimator=ppo")
    settings = with_value(settings, FIELDS["agent_turn_discount"], 1.5)
    assert not [text for text in problems(settings, REGISTERED) if text.startswith("agent_")]
    assert notes(FIELDS["agent_credit"], settings)
    assert notes(FIELDS["agent_turn_discount"], settings)
    names = [text.split()[0] for text in problems(met(settings, "agents"), REGISTERED)]
    assert {"agent_credit", "agent_turn_discount"} <= set(names)


@pytest.mark.parametrize(("field", "rule"), USED)
def test_a_setting_without_effect_is_named(field: SettingsField, rule: Rule) -> None:
    used = owned(field, rule)
    assert field.default != value_of(used, field)
    assert not notes(field, used)
    unused = used
    for condition in rule.others:
        unused = unmet(unused, condition) if rule.act is Act.UNUSED_WITHOUT else met(unused, condition)
    assert notes(field, unused)


@pytest.mark.parametrize("later", Later)
def test_a_command_may_change_some_settings(later: Later) -> None:
    every = {(field.component, field.name): field.flag for field in settings_fields()}
    may = [place for place in every if every[place] in changeable(later) and not unchangeable([place], later)]
    assert 0 < len(may) < len(every)
    fixed = unchangeable(every, later)
    assert fixed == [flag for place, flag in every.items() if place not in may]


def test_a_setting_of_megatron_or_sglang_has_the_rule_of_its_component() -> None:
    places = [("trainer", "megatron"), ("engine", "sglang")]
    assert unchangeable(places, Later.LEARN) == ["--sglang"]
    assert unchangeable(places, Later.RESUME) == ["--megatron", "--sglang"]
    assert unchangeable(places, Later.BRANCH_WITH_OPTIMIZER) == []


def test_an_empty_name_of_a_function_is_named() -> None:
    settings = with_value(TrainSettings(), FIELDS["custom_rm_path"], "")
    assert [text for text in problems(settings, REGISTERED) if text.startswith("--custom-rm-path is empty: ")]


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
