r"""`math-verify`: the answer against the label by the library of that name, which reads LaTeX and plain expressions.

The library gives plain expressions to sympy's `parse_expr`, and that gives them to `eval`. Here it gets a reader that
calls nothing (`expression.py`). Its own time limits are off, since they are signals: a grader's process has one.
"""

from __future__ import annotations

import functools
from typing import Any

from schemas.errors import UngradableSample
from slime_events.plugins.rewards.expression import expression
from slime_events.plugins.sample import Sample, answer_of


def reward(response: str, sample: Sample) -> float:
    r"""1.0 or 0.0. The answer is what the library takes out of the text behind the thinking: a last `\boxed{}` first.

    Raises UngradableSample for a label that is missing, or that it cannot read.
    """
    label = "" if sample.label is None else str(sample.label).strip()
    library = _library()
    truth = library.parse(label if "$" in label or r"\boxed" in label else rf"\boxed{{{label}}}", parsing_timeout=None)
    if not label or not truth:
        raise UngradableSample(f"math-verify cannot read the label {label!r} (is --label-key right?)")
    given = library.parse(answer_of(response), parsing_timeout=None)
    return float(bool(given) and library.verify(truth, given, timeout_seconds=None))


@functools.cache
def _library() -> Any:
    import math_verify.parser  # late: 1 s that only its users pay

    math_verify.parser.parse_expr = _read
    return math_verify


def _read(text: str, **_: Any) -> Any:
    """In place of `parse_expr`."""
    return expression(text)
