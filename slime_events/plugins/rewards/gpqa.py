"""`gpqa`: the letter that a multiple-choice answer names, or the option's own words.

The rules are slime's, with one quirk: the first pattern takes the first letter after "answer", "option" or "choice",
even inside a word, so that "The answer is (B)" reads as I.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

from slime_events.plugins.sample import Sample, without_end

_DEFAULT_LETTERS = tuple(string.ascii_uppercase[:10])
# Never two `\s*` side by side: on a long run of blanks they would backtrack over every split.
_NAMED = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(?:answer|option|choice)\s*(?:(?:is|:)\s*)?([A-Z])",
        r"([A-Z])\s*is\s*(?:the\s*)?correct",
        r"final\s*(?:answer|option)\s*(?:(?:is|:)\s*)?([A-Z])",
    )
)
_STANDALONE = re.compile(r"\b([A-Z])\b")


def reward(response: str, sample: Sample) -> float:
    """Return 1.0 or 0.0."""
    return compute_gpqa_reward(without_end(response), sample.label, sample.metadata)


def compute_gpqa_reward(response: str | None, label: object, metadata: Mapping[str, Any] | None = None) -> float:
    """Return 1.0 if the response picks the right option.

    `label` is a letter, an option's index or an option's words. `metadata` may have `choices` (list or dict),
    `valid_letters`, `correct_letter`, `correct_answer` and `answer_text`.
    """
    if response is None:
        return 0.0
    about = metadata or {}
    choices = _choices(about)
    letters = _valid_letters(about, choices)
    words = label.strip() if isinstance(label, str) else None
    right = _right_letter(about, label, words, choices, letters)
    response = response.rsplit("</think>", 1)[-1]
    picked = _picked_letter(response, letters)
    if picked and right:
        return float(picked == right)
    if _has_any(response, _right_words(about, right, words, choices, letters)):
        return 1.0
    return float(bool(picked and not right and words) and picked == (words or "").upper())


def _choices(about: Mapping[str, Any]) -> list[Any]:
    choices = about.get("choices")
    return list(choices.values() if isinstance(choices, dict) else choices or ())


def _valid_letters(about: Mapping[str, Any], choices: Sequence[Any]) -> Sequence[str]:
    if letters := about.get("valid_letters"):
        return [str(letter).upper() for letter in letters]
    return list(string.ascii_uppercase[: len(choices)] if choices else _DEFAULT_LETTERS)


def _right_letter(
    about: Mapping[str, Any], label: object, words: str | None, choices: Sequence[Any], letters: Sequence[str]
) -> str | None:
    letter = about.get("correct_letter")
    right = letter.strip().upper() if isinstance(letter, str) else None
    if words is not None:
        if len(words) == 1 and words.upper() in letters:
            right = right or words.upper()
    elif isinstance(label, int | float) and 0 <= int(label) < len(letters):
        right = letters[int(label)]
    if not right and words:
        for index, choice in enumerate(choices):
            if _plain(str(choice)) == _plain(words):
                return letters[index]
    return right


def _picked_letter(text: str, letters: Sequence[str]) -> str | None:
    valid = frozenset(letters)
    for pattern in _NAMED:
        if (match := pattern.search(text)) and match[1].upper() in valid:
            return match[1].upper()
    return next((letter for letter in reversed(_STANDALONE.findall(text)) if letter in valid), None)


def _right_words(
    about: Mapping[str, Any], right: str | None, words: str | None, choices: Sequence[Any], letters: Sequence[str]
) -> list[str]:
    options = [str(about[key]) for key in ("correct_answer", "answer_text") if about.get(key)]
    if right in letters and letters.index(right) < len(choices):
        options.append(str(choices[letters.index(right)]))
    if words and not (len(words) == 1 and words.upper() in letters):
        options.append(words)
    return options


def _has_any(response: str, options: Sequence[str]) -> bool:
    text = f" {_plain(response)} "
    return any(f" {option} " in text for option in map(_plain, options) if option)


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()
