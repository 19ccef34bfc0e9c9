r"""`math`: the last `\boxed{}` against the label, by spelling (MATHD) or by sympy.

The rules are those of Hendrycks' MATH evaluation and DeepScaleR, which slime uses. Each step keeps its place, since the
order decides which answers are equal. No text is evaluated as Python (`expression.py`). sympy may never finish
simplifying an expression: graders run in processes that are killed at their time limit.
"""

from __future__ import annotations

import re

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
"""Powers that are too costly for sympy: braces or brackets in the exponent, towers, two digits and more."""


def reward(response: str, sample: Sample) -> int:
    """Return 1 if the last box equals the label, else 0. The text before </think> counts too."""
    return int(grade_answer(response, sample.label))


def grade_answer(solution: str, label: object) -> bool:
    """Apply slime's `grade_answer_verl`. A label may itself be boxed; an empty label is never correct."""
    if not label:
        return False
    truth: str | None = str(label)
    if truth and r"\boxed" in truth:
        truth = last_boxed(truth)
    answer = last_boxed(solution)
    if answer is None or truth is None:
        return False
    return answers_equal(answer, truth)


def answers_equal(answer: str, truth: str) -> bool:
    """Return whether the answers are equal in spelling or for sympy. An empty answer equals nothing."""
    return bool(answer.strip()) and (grade_answer_mathd(answer, truth) or grade_answer_sympy(answer, truth))


def grade_answer_sympy(answer: str | None, truth: str | None) -> bool:
    """Return whether the answers are equal as expressions, element by element in tuples and intervals.

    Fractions must be written alike (1/2 does not equal 2/4), and an integer equals only an integer.
    """
    if answer is None or truth is None:
        return False
    truth, answer = _normalize(truth), _normalize(answer)
    if truth == answer:
        return True
    if not answer:
        return False
    expected, elements = _elements(truth), _elements(answer)
    if len(expected) != len(elements):
        return False
    if len(expected) > 1 and (truth[0] != answer[0] or truth[-1] != answer[-1]):  # (1, 2] is not (1, 2)
        return False
    return all(map(_element_equal, expected, elements))


def _element_equal(truth: str, answer: str) -> bool:
    if _is_fraction(truth) and _is_fraction(answer):
        return truth == answer
    if _is_integer(truth) != _is_integer(answer):
        return False
    return _equal_under_sympy(truth, answer)


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
    except Exception:  # pylatexenc may raise anything: slime then keeps the text as it is
        return text
    return str(plain).translate(_SYMBOLS).strip()


def _whole(text: str) -> float | None:
    """Return the number if it is within 1e-7 of an integer."""
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
    """Remove the commas of 1,234,567. The commas of a tuple stay."""
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


def _equal_under_sympy(truth: str, answer: str) -> bool:
    difference = f"({truth})-({answer})"
    letters = set(filter(str.isalpha, difference.replace("sqrt", "").replace("frac", "")))
    if len(letters) > 2 or _HARD_POWER.search(difference):
        return False
    import sympy  # late: takes 0.3 s

    try:
        parsed = expression(difference.replace("^", "**"))
        return bool(sympy.simplify(parsed) == 0)
    except MemoryError:
        raise
    except Exception:  # sympy raises nearly anything for a text that is not an expression
        return False
