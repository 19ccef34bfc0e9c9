r"""What a grader reads under the prefix `boxed_`: by default what the last `\boxed{}` holds, an empty text without one.

slime does that for every grader. So its `boxed_math` and `boxed_deepscaler` look for a box inside of the box and are
always 0, and its `boxed_dapo` looks there for an `Answer:` line and is always -1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from slime_events.plugins.rewards.boxed import last_boxed


def _whole(response: str) -> str:
    """For graders that take the answer out of the last box themselves."""
    return response


def _answer_line(response: str) -> str:
    """For graders that take the answer from an `Answer:` line."""
    inner = last_boxed(response)
    return "" if inner is None else f"Answer: {' '.join(inner.split())}"


RULES: Mapping[str, Callable[[str], str]] = {"dapo": _answer_line, "deepscaler": _whole, "math": _whole}
"""Graders, by name, to which the inside of a box alone says nothing."""


def unboxed(grader: str, response: str) -> str:
    """The part of a response that `boxed_` and the name of a grader read."""
    rule = RULES.get(grader)
    return rule(response) if rule else last_boxed(response) or ""
