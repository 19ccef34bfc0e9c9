r"""`dapo`: the last `Answer:` line against an integer label (DAPO, arXiv 2503.14476, by slime's rules)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypedDict

from slime_events.plugins.rewards.boxed import last_boxed
from slime_events.plugins.sample import Sample, without_end

SOLUTION_CHARS = 300
"""Only the end of a response is looked at."""
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
    """score: 1.0 or -1.0; acc: right or not; pred: the answer as read (None in strict mode without a box)."""

    score: float
    acc: bool
    pred: str | None


def reward(response: str, sample: Sample) -> DapoScore:
    """A dict; its entry `score` is trained on unless --reward-key names another."""
    return compute_score(without_end(response), sample.label)


def compute_score(solution: str, label: Any, strict_box_verify: bool = False) -> DapoScore:
    r"""Grade the last 300 characters of `solution`.

    strict_box_verify: compare the last `\boxed{}` of the last 100 characters letter by letter instead.
    Raises ValueError where the label is no number.
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


def normalize_final_answer(answer: Any) -> str:
    """One spelling of a final answer: units, filler words, dollar signs and LaTeX dress off; 1,234 -> 1234."""
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
    """`text` without LaTeX around an answer: what stands between dollars alone, and no command for a font or a box."""
    text = _BETWEEN_DOLLARS.sub(r"$\1$", text)
    for opening in _DRESSED:
        text = _undressed(text, opening, str.find)
    return _undressed(text, r"\boxed{", str.rfind)


def _undressed(text: str, opening: str, closing: Callable[[str, str, int], int]) -> str:
    """`text` without each `opening` and the brace that ends it: the next of its line, or the last (closing).

    It passes over each line once. A pattern that looks for the brace from every opening does not.
    """
    lines = text.split("\n")
    for number, line in enumerate(lines):
        parts, at = [], 0
        while (start := line.find(opening, at)) >= 0 and (end := closing(line, "}", start + len(opening))) >= 0:
            parts += [line[at:start], line[start + len(opening) : end]]
            at = end + 1
        lines[number] = "".join([*parts, line[at:]])
    return "\n".join(lines)
