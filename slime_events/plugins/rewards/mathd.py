"""MATHD: answers are equal if their spellings are, after the rules of Hendrycks' MATH evaluation, in their order."""

from __future__ import annotations

import re

TEXT = re.compile(r"^\\text\{(?P<inner>.+?)\}$")
_REPLACED = (
    *(("\n", ""), (r"\!", ""), (r"\\", "\\"), ("tfrac", "frac"), ("dfrac", "frac"), (r"\left", "")),
    *((r"\right", ""), (r"^{\circ}", ""), (r"^\circ", ""), (r"\$", "")),
)
_INTEGER_RATIO = re.compile(r"(0|-?[1-9][0-9]*)/(0|-?[1-9][0-9]*)")


def grade_answer_mathd(answer: str | None, truth: str | None) -> bool:
    """Return whether the answers are equal after `mathd_normalize_answer`."""
    return mathd_normalize_answer(answer) == mathd_normalize_answer(truth)


def mathd_normalize_answer(answer: str | None) -> str | None:
    """Return one spelling for answers that mean the same. An answer that the rules cannot read stays as it is."""
    if answer is None:
        return None
    answer = answer.strip()
    if wrapped := TEXT.search(answer):
        answer = wrapped["inner"].strip()
    try:
        return _one_spelling(answer)
    except _UnreadableError:
        return answer


class _UnreadableError(Exception):
    """An answer that the spelling rules cannot take apart."""


def _one_spelling(text: str) -> str:
    for old, new in _REPLACED:
        text = text.replace(old, new)
    text = _without_unit(text).replace(r"\%", "").replace(" .", " 0.").replace("{.", "{0.")
    if not text:
        return text
    if text.startswith("."):
        text = "0" + text
    sides = text.split("=")
    if len(sides) == 2 and len(sides[0]) <= 2:  # "x = 5"
        text = sides[1]
    text = _brace_fractions(_brace_roots(text).replace(" ", ""))
    if text == "0.5":
        return r"\frac{1}{2}"
    if ratio := _INTEGER_RATIO.fullmatch(text):
        return rf"\frac{{{ratio[1]}}}{{{ratio[2]}}}"
    return text


def _without_unit(text: str) -> str:
    # \text{ with a blank after it introduces a unit: 12 \text{ cm}.
    parts = text.split(r"\text{ ")
    if len(parts) > 2:
        raise _UnreadableError
    return parts[0]


def _brace_roots(text: str) -> str:
    r"""Convert \sqrt3 to \sqrt{3}."""
    head, *pieces = text.split(r"\sqrt")
    if not all(pieces):
        raise _UnreadableError
    braced = [piece if piece[0] == "{" else f"{{{piece[0]}}}{piece[1:]}" for piece in pieces]
    return r"\sqrt".join([head, *braced])


def _brace_fractions(text: str) -> str:
    r"""Convert \frac12 and \frac1{2} to \frac{1}{2}. A lone \frac1 leaves the whole text unchanged."""
    head, *pieces = text.split(r"\frac")
    braced = [head]
    for piece in pieces:
        if not piece:
            raise _UnreadableError
        if piece[0] == "{":
            braced.append(piece)
        elif len(piece) == 1:
            return text
        elif piece[1] == "{":
            braced.append(f"{{{piece[0]}}}{piece[1:]}")
        else:
            braced.append(f"{{{piece[0]}}}{{{piece[1]}}}{piece[2:]}")
    return r"\frac".join(braced)
