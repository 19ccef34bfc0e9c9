"""The copied cases hold, the judge can fail, and every difference on purpose is one that exists."""

import dataclasses
import json
import runpy

import pytest

from tests.conformance.__main__ import CASES, main
from tests.conformance.case import load, same
from tests.conformance.differences import DIFFERENCES
from tests.conformance.judge import Outcome, judge
from tests.conformance.registry import RUNNERS

ALL = load(CASES)


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.id)
def test_case(case):
    verdict = judge(case)
    assert verdict.outcome is not Outcome.FAILED, verdict.detail


def test_every_difference_and_runner_is_of_the_file():
    assert DIFFERENCES.keys() <= {case.id for case in ALL}
    assert RUNNERS.keys() <= {case.family for case in ALL}


PLAIN = {case.family: case for case in ALL if not case.raises and case.id not in DIFFERENCES}


@pytest.mark.parametrize("family", sorted(PLAIN.keys() & RUNNERS.keys()))
def test_judge_notices_another_figure(family):
    case = PLAIN[family]
    assert judge(dataclasses.replace(case, expected="something else")).outcome is Outcome.FAILED


def test_judge_notices_a_missing_error():
    case = next(case for case in ALL if case.family == "kl")
    assert judge(dataclasses.replace(case, expected={"raises": "ValueError"})).outcome is Outcome.FAILED


@pytest.mark.parametrize("expected", [[1.0], {"value": 1.0}, None, 1.0])
def test_judge_says_what_a_case_raised_where_a_figure_was_expected(expected):
    case = next(case for case in ALL if case.family == "kl")
    verdict = judge(dataclasses.replace(case, input={}, expected=expected))
    assert verdict.outcome is Outcome.FAILED
    assert "KeyError" in verdict.detail


def test_a_difference_that_is_none_any_more_fails():
    case = next(case for case in ALL if case.id == "reward_norm-08")
    assert judge(case).outcome is Outcome.BETTER
    ours = DIFFERENCES[case.id].ours
    assert judge(dataclasses.replace(case, expected=ours)).outcome is Outcome.FAILED


def test_same_is_strict_about_shape_and_size():
    assert same([1, {"a": 0.1}], (1.0, {"a": 0.1 + 1e-9, "more": 2}), 0)
    assert not same([1, 2], [1], 0)
    assert not same({"a": 1}, {"b": 1}, 0)
    assert not same(0.5, 0.5001, 1e-5)
    assert not same(None, 0, 1)


def test_last_line_and_exit_code(tmp_path, capsys):
    raw = json.loads(CASES.read_text())
    broken = next(case for case in raw["cases"] if case["id"] == "kl-01")
    broken["expected"] = [9.0, 9.0, 9.0]
    (tmp_path / "broken.json").write_text(json.dumps(raw))
    assert main([str(tmp_path / "broken.json")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("FAILED: kl-01") for line in lines)
    assert lines[-1].endswith(" passed, 1 failed")


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
def test_runs_as_a_module(monkeypatch, capsys):
    """As `python -m tests.conformance FILE` does, which is how others call it."""
    monkeypatch.setattr("sys.argv", ["tests.conformance", str(CASES)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("tests.conformance", run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(" passed, 0 failed")
