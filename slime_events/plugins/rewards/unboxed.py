r"""The part of a response that a grader reads under the prefix `boxed_`: by default the content of the last `\boxed{}`.

slime applies that default to every grader. So its `boxed_math` and `boxed_deepscaler` look for a box inside the box and
always give 0, and its `boxed_dapo` looks there for an `Answer:` line and always gives -1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from slime_events.plugins.rewards.boxed import last_boxed


def _whole(response: str) -> str:
    """Return the response, for graders that extract the last box themselves."""
    return response


def _answer_line(response: str) -> str:
    """Return the box as an `Answer:` line, for graders that read such a line."""
    inner = last_boxed(response)
    return "" if inner is None else f"Answer: {' '.join(inner.split())}"


def _last_box(response: str) -> str:
    """Return the last box alone, for graders that read LaTeX only in a box."""
    inner = last_boxed(response)
    return "" if inner is None else rf"\boxed{{{inner}}}"


RULES: Mapping[str, Callable[[str], str]] = {
    "dapo": _answer_line,
    "deepscaler": _whole,
    "math": _whole,
    "math-verify": _last_box,
}
"""Graders that cannot read the bare content of a box."""


def unboxed(grader: str, response: str) -> str:
    """Return the part of a response that `boxed_<grader>` reads; empty without a box."""
    rule = RULES.get(grader)
    return rule(response) if rule else last_boxed(response) or ""
