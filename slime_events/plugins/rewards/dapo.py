r"""`dapo`: the last `Answer:` line against an integer label (DAPO, arXiv 2503.14476, by slime's rules)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, TypedDict

from schemas.doc import doc
from slime_events.plugins.rewards.boxed import last_boxed
from slime_events.plugins.sample import Sample, without_end

SOLUTION_CHARS = 300  # characters at the end of a response that are read
STRICT_CHARS = 100
INVALID = "[INVALID]"

_ANSWER = re.compile(r"(?i)Answer\s*:\s*([^\n]+)")
_REPLACED = (
    *(("an ", ""), ("a ", ""), (".$", "$"), (r"\$", ""), ("\\ ", ""), (" ", ""), ("mbox", "text")),
    *((r",\text{and}", ","), (r"\text{and}", ","), (r"\text{m}", r"\text{}")),
)
# In slime's order: an earlier removal can make or unmake a later one.
_REMOVED = (
    *("square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units", r"\ldots", "sue", "points"),
    *("feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges", "students"),
    *("childrentickets", "multiples", r"\text{s}", r"\text{.}", "\\text{\ns}", r"\text{}^2", r"\text{}^3"),
    *("\\text{\n}", r"\text{}", r"\mathrm{th}", r"^\circ", r"^{\circ}", r"\;", r",\!", "{,}", '"', r"\dots"),
    *("<|im_end|>", "<|endoftext|>"),
)
_BETWEEN_DOLLARS = re.compile(r"^[^$\n]*\$([^$\n]*)\$.*", re.MULTILINE)
_DRESSED = (r"\text{", r"\textbf{", r"\overline{")
_REWRITTEN = (
    (re.compile(r"frac([^{])(.)"), r"frac{\1}{\2}"),
    (re.compile(r"sqrt([^{])"), r"sqrt{\1}"),
)


class DapoScore(TypedDict):
    """Result of `dapo`."""

    score: Annotated[float, doc("1.0 or -1.0.")]
    acc: Annotated[bool, doc("Whether the answer is correct.")]
    pred: Annotated[str | None, doc("Answer as it was read; None in strict mode without a box.")]


def reward(response: str, sample: Sample) -> DapoScore:
    """Return a dict. Its entry `score` is the reward unless --reward-key names another."""
    return compute_score(without_end(response), sample.label)


def compute_score(solution: str, label: object, strict_box_verify: bool = False) -> DapoScore:
    r"""Grade the last 300 characters of `solution`.

    With `strict_box_verify`, the last `\boxed{}` of the last 100 characters must equal the label exactly. Raises
    ValueError if the label is not a number.
    """
    solution = solution[-SOLUTION_CHARS:]
    pred: str | None
    if strict_box_verify:
        pred = last_boxed(solution[-STRICT_CHARS:], opening=r"\boxed{")
        right = pred == label
    else:
        answers = _ANSWER.findall(solution)
        pred = normalize_final_answer(answers[-1] if answers else INVALID)
        right = pred == str(int(float(normalize_final_answer(label))))
    return DapoScore(score=1.0 if right else -1.0, acc=right, pred=pred)


def normalize_final_answer(answer: object) -> str:
    """Return a final answer without units, filler words, dollar signs and LaTeX markup; 1,234 -> 1234."""
    text = str(answer).split("=")[-1]
    for old, new in _REPLACED:
        text = text.replace(old, new)
    for word in _REMOVED:
        text = text.replace(word, "")
    text = _undressed_all(text)
    for pattern, replacement in _REWRITTEN:
        text = pattern.sub(replacement, text)
    text = text.replace("$", "")
    if text.replace(",", "").isdigit():
        text = text.replace(",", "")
    return text.strip()


def _undressed_all(text: str) -> str:
    """Remove LaTeX around an answer: keep only text between dollars, and drop commands for fonts and boxes."""
    text = _BETWEEN_DOLLARS.sub(r"$\1$", text)
    for opening in _DRESSED:
        text = _undressed(text, opening, str.find)
    return _undressed(text, r"\boxed{", str.rfind)


def _undressed(text: str, opening: str, closing: Callable[[str, str, int], int]) -> str:
    """Remove each `opening` and its closing brace: the next one in the line, or the last one (`closing`).

    Each line is scanned once. A pattern that searches the brace from every opening would take quadratic time.
    """
    lines = text.split("\n")
    for number, line in enumerate(lines):
        parts, at = [], 0
        while (start := line.find(opening, at)) >= 0 and (end := closing(line, "}", start + len(opening))) >= 0:
            parts += [line[at:start], line[start + len(opening) : end]]
            at = end + 1
        lines[number] = "".join([*parts, line[at:]])
    return "\n".join(lines)
