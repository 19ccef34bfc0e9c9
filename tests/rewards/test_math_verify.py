"""`math-verify`: what it says without its package, and what it grades with it."""

import importlib.util

import pytest

from schemas.errors import InvalidValue, MissingPart, UngradableSample
from slime_events.app.launch.preflight import _check_plug_points
from slime_events.plugins.rewards.registry import built_in, check_installed, import_heavy
from slime_events.plugins.sample import Sample
from tests import made

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("math_verify") is None, reason="pip install 'slime-events[math-verify]'"
)


def test_without_the_package_one_sentence_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_installed.cache_clear()
    for check in (check_installed, import_heavy):
        with pytest.raises(MissingPart, match="pip install math-verify"):
            check("boxed_math-verify")
    with pytest.raises(InvalidValue, match="--rm-type math-verify needs math-verify"):
        _check_plug_points(made.settings(reward={"rm_type": "math-verify"}))


def test_a_package_that_is_there_and_broken_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ImportError("antlr4 is too old")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(MissingPart, match="antlr4 is too old"):
        import_heavy("math-verify")


@needs_package
@pytest.mark.parametrize(
    ("response", "label", "value"),
    [
        (r"<think>\boxed{1}</think>so \boxed{\frac{1}{2}}<|im_end|>", "0.5", 1.0),
        (r"\boxed{0.5}", r"$\frac{1}{2}$", 1.0),
        (r"\boxed{\{1, 2\}}", r"\boxed{\{2, 1\}}", 1.0),
        ("The answer is 42.", "42", 1.0),
        ("The answer is 2*21", "42", 1.0),
        (r"\boxed{1}", "0.5", 0.0),
        ("no idea", "42", 0.0),
        ("", "42", 0.0),
    ],
)
def test_grades(response: str, label: str, value: float) -> None:
    assert built_in("math-verify").function(None, Sample(response=response, label=label)) == value


@needs_package
def test_the_inside_of_a_box() -> None:
    grade = built_in("boxed_math-verify").function
    assert grade(None, Sample(response=r"4 or \boxed{\frac12}, so 7", label="0.5")) == 1.0
    assert grade(None, Sample(response="so 0.5", label="0.5")) == 0.0


@needs_package
@pytest.mark.parametrize("label", [None, "", " "])
def test_a_label_that_is_missing(label: str | None) -> None:
    with pytest.raises(UngradableSample, match="label"):
        built_in("math-verify").function(None, Sample(response="4", label=label))


@needs_package
def test_no_text_is_evaluated_as_python(tmp_path) -> None:
    mark = tmp_path / "evaluated"
    for text in (f"__import__('pathlib').Path('{mark}').touch()", f"(open('{mark}','w'))", "9**9**9**9"):
        built_in("math-verify").function(None, Sample(response=f"The answer is {text}", label="4"))
        built_in("math-verify").function(None, Sample(response=rf"\boxed{{{text}}}", label="4"))
    assert not mark.exists()
