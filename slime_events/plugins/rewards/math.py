r"""`math`: the last `\boxed{}` against the label, by spelling (MATHD) or by sympy.

The rules are those that Hendrycks' MATH evaluation and DeepScaleR made common and slime uses; each step is kept in
their order, since the order decides what is equal. No text is evaluated as Python (`expression.py`). sympy can take for
ever over what it simplifies: graders run in processes that are ended at their time limit.
"""

from __future__ import annotations

import re
from typing import Any

from slime_events.plugins.rewards.boxed import last_boxed
from slime_events.plugins.rewards.expression import expression
from slime_events.plugins.rewards.mathd import TEXT, grade_answer_mathd
from slime_events.plugins.sample import Sample

_UNITS = (
    *("degree", "cm", "centimeter", "meter", "mile", "second", "minute", "hour", "day", "week", "month", "year"),
    *("foot", "feet", "inch", "yard"),
)
_UNIT_PATTERNS = tuple(re.compile(rf"{unit}(es)?(s)? *(\^[0-9]+)?") for unit in _UNITS)
_MAGNITUDES = (("million", "*10^6"), ("billion", "*10^9"), ("trillion", "*10^12"))
_SYMBOLS = str.maketrans({"√": "sqrt", "π": "pi", "∞": "inf", "∪": "U", "·": "*", "×": "*"})
_BRACKETS = "()[]"
_HARD_POWER = re.compile(r"\^\{|\^\(|\^[0-9]+\^|\^[0-9][0-9]+")
"""Powers that sympy could choke on: braces or brackets above, towers, two digits and more."""


def reward(response: str, sample: Sample) -> int:
    """1 where the last box equals the label, else 0. Nothing is cut at </think>."""
    return int(grade_answer(response, sample.label))


def grade_answer(solution: str, label: Any) -> bool:
    """slime's `grade_answer_verl`. A label may itself be boxed; an empty one is never right."""
    if not label:
        return False
    truth: str | None = str(label)
    if truth and r"\boxed" in truth:
        truth = last_boxed(truth)
    given = last_boxed(solution)
    if given is None or truth is None:
        return False
    return answers_equal(given, truth)


def answers_equal(given: str, truth: str) -> bool:
    """Equal in spelling or in sympy's eyes. An empty answer is equal to none, whatever a label is once it is read."""
    return bool(given.strip()) and (grade_answer_mathd(given, truth) or grade_answer_sympy(given, truth))


def grade_answer_sympy(given: str | None, truth: str | None) -> bool:
    """Equal as expressions, element by element in tuples and intervals.

    Two fractions must be written alike (1/2 is not 2/4), and an integer only equals an integer.
    """
    if given is None or truth is None:
        return False
    truth, given = _normalize(truth), _normalize(given)
    if truth == given:
        return True
    if not given:
        return False
    truths, givens = _elements(truth), _elements(given)
    if len(truths) != len(givens):
        return False
    if len(truths) > 1 and (truth[0] != given[0] or truth[-1] != given[-1]):  # (1, 2] is not (1, 2)
        return False
    return all(_element_equal(one, other) for one, other in zip(truths, givens, strict=True))


def _element_equal(truth: str, given: str) -> bool:
    if _is_fraction(truth) and _is_fraction(given):
        return truth == given
    if _is_integer(truth) != _is_integer(given):
        return False
    return _equal_under_sympy(truth, given)


def _normalize(text: str) -> str:
    if wrapped := TEXT.search(text):
        text = wrapped["inner"]
    for old, new in ((r"\%", "%"), (r"\$", "$"), ("$", ""), ("%", ""), (" or ", " , "), (" and ", " , "), *_MAGNITUDES):
        text = text.replace(old, new)
    for unit in _UNIT_PATTERNS:
        text = unit.sub("", text)
    text = re.sub(r"\^ *\\circ", "", text)
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    text = re.sub(r",\\! *", "", text)
    if (number := _whole(text)) is not None:
        text = str(round(number))
    if "\\" in text:
        text = _plain_of_latex(text)
    text = re.sub(r"- *", "-", text)
    text = re.sub(r"([0-9]) +([0-9])", r"\1+\2", text)  # the mixed number 7 3/4 is 7+3/4
    text = text.replace(" ", "").replace("{", "").replace("}", "").lower()
    if _is_integer(text):
        text = str(int(float(text.replace(",", ""))))
    return text


def _plain_of_latex(text: str) -> str:
    from pylatexenc.latex2text import LatexNodes2Text  # late: light processes never need it

    text = text.replace(r"\tfrac", r"\frac").replace(r"\dfrac", r"\frac")
    text = text.replace(r"\frac", r" \frac")  # keeps the mixed number 7\frac34 apart
    try:
        plain = LatexNodes2Text().latex_to_text(text)
    except Exception:  # whatever pylatexenc trips over: slime then goes on with the text as it stands
        return text
    return str(plain).translate(_SYMBOLS).strip()


def _whole(text: str) -> float | None:
    """The number that `text` is, where it is within 1e-7 of an integer."""
    try:
        number = float(text)
        return number if abs(number - round(number)) <= 1e-7 else None
    except (ValueError, OverflowError):
        return None


def _is_integer(text: str) -> bool:
    return _whole(_without_thousands(text)) is not None


def _is_fraction(text: str) -> bool:
    return re.search(r"^-?[0-9]+.?/0*[1-9][0-9]*.?$", text) is not None


def _without_thousands(text: str) -> str:
    """1,234,567 -> 1234567; the commas of a tuple stay."""
    while (shorter := re.sub(r"(\d),(\d\d\d)($|\D)", r"\1\2\3", text)) != text:
        text = shorter
    return text


def _elements(text: str) -> list[str]:
    text = _without_thousands(text)
    if not text:
        return []
    inner = text[1:-1]
    enclosed = len(text) > 2 and text[0] in _BRACKETS and text[-1] in _BRACKETS
    if enclosed and not any(bracket in inner for bracket in _BRACKETS):
        return [element.strip() for element in inner.split(",")]
    return [text]


def _equal_under_sympy(truth: str, given: str) -> bool:
    difference = f"({truth})-({given})"
    letters = set(filter(str.isalpha, difference.replace("sqrt", "").replace("frac", "")))
    if len(letters) > 2 or _HARD_POWER.search(difference):
        return False
    import sympy  # late: 0.3 s that only sympy's users pay

    try:
        parsed = expression(difference.replace("^", "**"))
        return bool(sympy.simplify(parsed) == 0)
    except MemoryError:
        raise
    except Exception:  # a text that is no expression is not equal; sympy raises nearly everything
        return False
