r"""The last `\boxed{...}` of a text."""

from __future__ import annotations


def last_boxed(text: str, opening: str = r"\boxed") -> str | None:
    r"""Return the content between the braces of the last `opening`; None without one, or if its braces do not close.

    With the default opening, a last `\boxed` without a brace directly after it hides earlier ones (slime's rule for
    math and deepscaler). With `\boxed{` it is skipped (slime's rule for dapo).
    """
    start = text.rfind(opening)
    if start < 0:
        return None
    start += len(opening.rstrip("{"))
    if not text.startswith("{", start):
        return None
    depth = 0
    for position in range(start, len(text)):
        if text[position] == "{":
            depth += 1
        elif text[position] == "}":
            depth -= 1
            if depth == 0:
                return text[start + 1 : position]
    return None
