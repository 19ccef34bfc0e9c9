"""Helpers of slime's graders that our graders do not use, for plug-ins that import them from slime's modules.

The table in `plugins/slime/modules.py` has the name in slime of each helper. Arguments that slime's users may pass by
name have slime's names.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from slime_events.plugins.rewards import dapo, f1, gpqa, math, mathd
from slime_events.plugins.rewards.boxed import last_boxed
from slime_events.plugins.rewards.expression import expression

if TYPE_CHECKING:
    import sympy

# rm_hub.math_utils
BAD_SUBSTRINGS = ["^{", "^("]
BAD_REGEXES = [r"\^[0-9]+\^", r"\^[0-9][0-9]+"]
TUPLE_CHARS = "()[]"
# rm_hub.math_dapo_utils
SUBSTITUTIONS = list(dapo._REPLACED)
REMOVED_EXPRESSIONS = list(dapo._REMOVED)
ANSWER_PATTERN = r"(?i)Answer\s*:\s*([^\n]+)"
# rm_hub.gpqa
DEFAULT_VALID_LETTERS = list(string.ascii_uppercase[:10])

_BOX = r"\boxed{"


def extract_answer(passage: str) -> str | None:
    r"""Return the content of the last `\boxed{}`; None without one, or if it does not close."""
    return last_boxed(passage)


def extract_boxed_answer(solution: str) -> str | None:
    """Return `extract_answer(solution)`: slime has the function twice."""
    return last_boxed(solution)


def grade_answer_verl(solution_str: str, ground_truth: object) -> bool:
    """Compare the last box with the label, which may be boxed itself, as `math` does."""
    return math.grade_answer(solution_str, ground_truth)


def grade_answer_mathd(given_answer: str | None, ground_truth: str | None) -> bool:
    """Return whether the answers are equal in spelling, by MATHD's rules."""
    return mathd.grade_answer_mathd(given_answer, ground_truth)


def grade_answer_sympy(given_answer: str | None, ground_truth: str | None) -> bool:
    """Return whether the answers are equal as expressions."""
    return math.grade_answer_sympy(given_answer, ground_truth)


def f1_score(prediction: str | None, ground_truth: str) -> tuple[float, float, float]:
    """Return (F1, precision, recall) over words."""
    return f1.f1_score(prediction, ground_truth)


def normalize_final_answer(final_answer: object) -> str:
    """Return the spelling of an answer that `dapo` compares."""
    return dapo.normalize_final_answer(final_answer)


def last_box_or_fbox(text: str) -> str | None:
    r"""Return the last `\boxed` or else the last `\fbox`, with the content of its braces; None if they do not close."""
    start = text.rfind(r"\boxed")
    return _closed(text, start if start >= 0 else text.rfind(r"\fbox"))


def last_box(text: str) -> str | None:
    r"""Return the last `\boxed{...}` with its braces; None without one, or if it does not close."""
    return _closed(text, text.rfind(_BOX))


def _closed(text: str, start: int) -> str | None:
    """Return `text` from `start` to the brace that closes the first one after it."""
    depth = 0
    for end in range(start, len(text) if start >= 0 else start):
        depth += (text[end] == "{") - (text[end] == "}")
        if text[end] == "}" and depth == 0:
            return text[start : end + 1]
    return None


def inside_box_or_none(box: str | None) -> str | None:
    r"""Return the content of `\boxed{...}`; None for anything else."""
    return box[len(_BOX) : -1] if box and box.startswith(_BOX) and box.endswith("}") else None


def inside_box(box: str) -> str:
    r"""Return the content of `\boxed{...}`. Raises AssertionError for anything else, as slime's function does."""
    if (inner := inside_box_or_none(box)) is None:
        raise AssertionError(f"box error: {box}")
    return inner


def normalized(text: str | None) -> str | None:
    """Return the spelling of an answer that `math` compares; None stays None."""
    return None if text is None else math._normalize(text)


def parsed(text: str) -> sympy.Expr:
    """Return a text as a sympy expression, with ^ for powers. Unlike slime's, it evaluates no text as Python."""
    return expression(text.replace("^", "**"))


def is_float(text: str) -> bool:
    """Return whether Python reads the text as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def is_whole(number: float) -> bool:
    """Return whether the number is within 1e-7 of an integer. Infinities and NaN are not."""
    try:
        return abs(number - round(number)) <= 1e-7
    except (TypeError, ValueError, OverflowError):
        return False


def to_int(text: str) -> int:
    """Convert 1,234.0 to 1234. Raises ValueError."""
    return int(float(text.replace(",", "")))


def with_mixed_numbers(text: str) -> str:
    """Convert 7 3/4 to 7+3/4."""
    return re.sub(r"([0-9]) +([0-9])", r"\1+\2", text)


def unknown_letters(text: str) -> int:
    """Return the number of distinct letters, without those of sqrt and frac."""
    return len({letter for letter in text.replace("sqrt", "").replace("frac", "") if letter.isalpha()})


def may_be_parsed(text: str) -> bool:
    """Return whether there are at most two unknowns, and no power that is too costly for sympy."""
    return unknown_letters(text) <= 2 and math._HARD_POWER.search(text) is None


def compute_score(
    solution_str: str,
    ground_truth: object,
    strict_box_verify: bool = False,
    pause_tokens_index: list[int] | None = None,
) -> dapo.DapoScore:
    """Apply `dapo` to the last 300 characters. Raises ValueError if the label is not a number."""
    right, pred = verify(solution_str[-dapo.SOLUTION_CHARS :], ground_truth, strict_box_verify, pause_tokens_index)
    return dapo.DapoScore(score=1.0 if right else -1.0, acc=right, pred=pred)


def verify(
    solution_str: str, answer: object, strict_box_verify: bool = False, pause_tokens_index: list[int] | None = None
) -> tuple[bool, str | None]:
    """Return whether the answer is correct, and the answer itself: the last box, or the last `Answer:` line."""
    if strict_box_verify:
        score, pred = is_correct_strict_box(solution_str, answer, pause_tokens_index)
        return score == 1, pred
    return is_correct_minerva(solution_str, answer)


def is_correct_minerva(
    solution_str: str, gt: Any, gt_need_extract: bool = False, answer_pattern: str = ANSWER_PATTERN
) -> tuple[bool, str]:
    """Compare the last match of `answer_pattern` with an integer label. With `gt_need_extract` the label is boxed."""
    answers = re.findall(answer_pattern, solution_str)
    pred = dapo.normalize_final_answer(answers[-1] if answers else dapo.INVALID)
    truth = inside_box(last_box(gt) or "") if gt_need_extract else gt
    return pred == str(int(float(dapo.normalize_final_answer(truth)))), pred


def is_correct_strict_box(pred: str, gt: object, pause_tokens_index: list[int] | None = None) -> tuple[int, str | None]:
    r"""Return 1 or -1, and the last `\boxed{}` in the last 100 characters of `pred`.

    If `pause_tokens_index` (four positions) is set, the search begins 100 characters before its last position. Raises
    AssertionError for another number of positions, as slime's function does.
    """
    if pause_tokens_index is not None and len(pause_tokens_index) != 4:
        raise AssertionError(f"pause_tokens_index has {len(pause_tokens_index)} places, not 4")
    start = -dapo.STRICT_CHARS if pause_tokens_index is None else pause_tokens_index[-1] - dapo.STRICT_CHARS
    answer = last_boxed(pred[start:], opening=_BOX)
    return (1 if answer == gt else -1), answer


def strip_chain_of_thought(text: str | None) -> str:
    """Return the text after the last `</think>`."""
    return (text or "").rsplit("</think>", 1)[-1]


def extract_letter(response: str | None, valid_letters: Iterable[str]) -> str | None:
    """Return the letter of the option that a response picks, as `gpqa` reads it."""
    return gpqa._picked_letter(strip_chain_of_thought(response), [letter.upper() for letter in valid_letters])
