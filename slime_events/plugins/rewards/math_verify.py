"""`math-verify`: the answer against the label by the library of that name, which reads LaTeX and plain expressions.

The library passes plain expressions to sympy's `parse_expr`, and that to `eval`. Here it gets a parser that calls
nothing (`expression.py`). Its own time limits are off, since they use signals: a grader's process has a limit.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import TYPE_CHECKING

from schemas.errors import UngradableSample
from slime_events.plugins.rewards.expression import expression
from slime_events.plugins.sample import Sample, answer_of

if TYPE_CHECKING:
    import sympy


def reward(response: str, sample: Sample) -> float:
    r"""Return 1.0 or 0.0. The library extracts the answer from the text after the thinking: a last `\boxed{}` first.

    Raises UngradableSample for a label that is missing or unreadable.
    """
    label = "" if sample.label is None else str(sample.label).strip()
    library = _library()
    truth = library.parse(label if "$" in label or r"\boxed" in label else rf"\boxed{{{label}}}", parsing_timeout=None)
    if not label or not truth:
        raise UngradableSample(f"math-verify cannot read the label {label!r} (is --label-key right?)")
    answer = library.parse(answer_of(response), parsing_timeout=None)
    return float(bool(answer) and library.verify(truth, answer, timeout_seconds=None))


@functools.cache
def _library() -> ModuleType:
    import math_verify.parser  # late: takes 1 s

    math_verify.parser.parse_expr = _read
    library: ModuleType = math_verify
    return library


def _read(text: str, **_: object) -> sympy.Expr:
    """Replace `parse_expr`."""
    return expression(text)
