"""The copied cases hold, the judge can fail, and no rule of the table lets another outcome pass."""

import dataclasses
import functools
import json
import runpy
from typing import Any

import pytest

from tests.harness.conformance import described
from tests.harness.conformance.__main__ import CASES, main
from tests.harness.conformance.case import Case, UnknownShape, load, same
from tests.harness.conformance.differences import RULES
from tests.harness.conformance.judge import Outcome, Verdict, judge
from tests.harness.conformance.registry import RUNNERS

MORE = CASES.with_name("more_cases.json")
"""Other inputs of every family: None, empty, other names, sizes and classes, and what raises."""
ALL = [*load(CASES), *load(MORE)]
BY_ID = {case.id: case for case in ALL}
FAMILIES = sorted({case.family for case in ALL})


@functools.cache
def verdict_of(name: str) -> Verdict:
    return judge(BY_ID[name])


def of(family: str, outcome: Outcome) -> list[Case]:
    return [case for case in ALL if case.family == family and verdict_of(case.id).outcome is outcome]


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.id)
def test_case(case: Case) -> None:
    verdict = verdict_of(case.id)
    assert verdict.outcome in (Outcome.PASSED, Outcome.BETTER), verdict.detail


@pytest.mark.parametrize("family", FAMILIES)
def test_figures_are_slimes_to_a_millionth(family: str) -> None:
    """Ours are of float32 at least; the tolerance that a case asks for is slime's noise, and none of these needs it."""
    for case in of(family, Outcome.PASSED):
        if not case.raises:
            assert same(case.expected, RUNNERS[family](case), relative=1e-6), case.id


def test_every_family_has_a_runner_and_more_cases() -> None:
    families = {case.family for case in load(CASES)}
    assert families == RUNNERS.keys()
    graders = {family for family in families if family.startswith(("rm_", "dapo_", "math_"))}
    assert {case.family for case in load(MORE)} >= families - graders


def test_the_table_of_rules_is_short_and_each_says_what_slime_does() -> None:
    assert len(RULES) <= 12
    page = (CASES.parents[3] / "docs" / "coming-from-slime.md").read_text()
    for rule in RULES:
        ours, _, slimes = rule.reason.partition("; ")
        assert f"| {ours} | {slimes} |" in page
        assert "slime" in slimes
        assert rule.families <= RUNNERS.keys()
    used = {verdict_of(case.id).rule for case in ALL}
    assert used >= set(range(1, len(RULES) + 1)), "a rule that nothing needs"


def changed(value: Any, *, first: bool = False) -> Any:
    """Another outcome: its last (or first) number, bool or text changed; None without one."""
    if isinstance(value, dict | list | tuple):
        places = list(value) if isinstance(value, dict) else list(range(len(value)))
        for place in places if first else reversed(places):
            if (other := changed(value[place], first=first)) is not None:
                return (
                    value | {place: other} if isinstance(value, dict) else [*value[:place], other, *value[place + 1 :]]
                )
        return None
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1000
    return f"{value}, changed" if isinstance(value, str) else None


@pytest.mark.parametrize("family", FAMILIES)
def test_judge_notices_another_figure(family: str) -> None:
    for case in of(family, Outcome.PASSED):
        if not case.raises:
            other = changed(case.expected) or ["something"]
            assert judge(dataclasses.replace(case, expected=other)).outcome is not Outcome.PASSED, case.id
            error = dataclasses.replace(case, expected={"raises": "AnotherError"})
            assert judge(error).outcome is Outcome.FAILED, case.id


@pytest.mark.parametrize("family", sorted({family for rule in RULES for family in rule.families}))
def test_a_rule_holds_for_the_outcome_that_it_promises_alone(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for case, got in [(case, RUNNERS[family](case)) for case in of(family, Outcome.BETTER)]:
        compared = got
        if isinstance(got, dict) and not case.raises:
            compared = {name: value for name, value in got.items() if name in case.expected}
        others = [changed(compared, first=True)]
        if 0 not in described.numbers(str(case.input.get("loss_masks", ""))):  # the last token may be one that is free
            others.append(changed(compared))
        for other in others:
            spoilt = got | other if isinstance(got, dict) else other
            monkeypatch.setitem(RUNNERS, family, lambda _, spoilt=spoilt: spoilt)
            assert judge(case).outcome is Outcome.FAILED, case.id


def test_what_is_slimes_is_no_difference() -> None:
    case = BY_ID["reward_norm-08"]
    assert verdict_of(case.id).outcome is Outcome.BETTER
    ours = RUNNERS[case.family](case)
    assert judge(dataclasses.replace(case, expected=ours)).outcome is Outcome.PASSED


def test_an_input_of_no_known_shape_fails() -> None:
    for family in ("data_source", "partial_rollout", "repetition"):
        case = Case("x", family, {"of": None}, 1)
        assert judge(case).outcome is Outcome.FAILED
        with pytest.raises(UnknownShape):
            RUNNERS[family](case)


@pytest.mark.parametrize("expected", [[1.0], {"value": 1.0}, None, 1.0])
def test_judge_says_what_a_case_raised_where_a_figure_was_expected(expected: Any) -> None:
    verdict = judge(dataclasses.replace(BY_ID["kl-01"], input={}, expected=expected))
    assert verdict.outcome is Outcome.FAILED
    assert "KeyError" in verdict.detail


def test_same_is_strict_about_shape_and_size() -> None:
    assert same([1, {"a": 0.1}], (1.0, {"a": 0.1 + 1e-9, "more": 2}))
    assert not same([1, 2], [1])
    assert not same({"a": 1}, {"b": 1})
    assert not same(0.5, 0.50001)
    assert same(0.5, 0.50008, 1.0)
    assert not same(0.5, 0.5002, 1.0), "a case may not ask for less than 1e-4"
    assert not same(None, 0)
    assert same(float("nan"), float("nan"))
    assert not same(float("nan"), 1.0)


def test_texts_in_words() -> None:
    assert described.text("'ab'*3 + 'c' (7 chars)") == "abababc"
    assert described.text("no expression (at all)") == "no expression (at all)"
    with pytest.raises(UnknownShape):
        described.sample("idx0 what")


def test_last_line_and_exit_code(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    raw = json.loads(CASES.read_text())
    raw["cases"] = [case for case in raw["cases"] if case["family"] in ("kl", "data_source")]
    broken = next(case for case in raw["cases"] if case["id"] == "kl-01")
    broken["expected"] = [9.0, 9.0, 9.0]
    (tmp_path / "broken.json").write_text(json.dumps(raw))
    assert main([str(tmp_path / "broken.json")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("FAILED: kl-01") for line in lines)
    assert lines[-1].endswith(" passed, 1 failed")


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
def test_runs_as_a_module(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Run `python -m tests.harness.conformance FILE`, as other programs do."""
    monkeypatch.setattr("sys.argv", ["tests.harness.conformance", str(CASES)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("tests.harness.conformance", run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(" passed, 0 failed")
