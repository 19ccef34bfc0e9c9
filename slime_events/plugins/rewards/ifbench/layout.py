"""IFBench's instructions `format:`: the layout of a response."""

from __future__ import annotations

import re
import string
from itertools import pairwise

from slime_events.plugins.rewards.ifbench import text as of

_CLOSED_BY = {"(": ")", "[": "]", "{": "}"}
_DEEP = 5
_LETTERS = re.compile(r"\W*[aA]\W*[bB]\W*[cC]\W*")
_ITALICS = ("i", "em")
_TEMPLATE = ("My Answer:", "My Conclusion:", "Future Outlook:")


def parentheses(text: str) -> bool:
    """Require brackets nested five deep, the innermost closed. A mismatched bracket starts again from zero."""
    waiting: list[str] = []
    deepest = 0
    for character in text:
        if character in _CLOSED_BY:
            waiting.append(_CLOSED_BY[character])
            deepest = max(deepest, len(waiting))
        elif character in _CLOSED_BY.values():
            if not waiting or waiting.pop() != character:
                waiting, deepest = [], 0
            elif deepest >= _DEEP:
                return True
    return False


def quotes(text: str) -> bool:
    """Require nested double and single quotes, three deep."""
    waiting: list[str] = []
    deepest = 0
    for character in text:
        if waiting and character == waiting[-1]:
            waiting.pop()
            if deepest - len(waiting) >= 3:
                return True
        elif character in "\"'":
            waiting.append(character)
            deepest = max(deepest, len(waiting))
    return False


def options(text: str, options: str) -> bool:
    """Require exactly one of the options. They are separated by `/`, else by the word or, else by commas."""
    parts = options.split("/") if "/" in options else re.split(r"\bor\b", options)
    parts = [part.strip() for part in (parts if len(parts) > 1 else options.split(","))]
    if _LETTERS.match(options):
        return text in parts
    return of.bare(text).lower() in (of.bare(part).lower() for part in parts)


def newline(text: str) -> bool:
    """Require each word on its own line."""
    return all(len(of.plain_words(line)) <= 1 for line in text.split("\n"))


def emoji(text: str) -> bool:
    """Require an emoji at the end of each sentence, before or after its mark."""
    sentences = [sentence.translate(of.NO_PUNCTUATION).strip() for sentence in of.sentences(text)]
    following = [sentence[:1] for sentence in sentences[1:]] + [""]
    # The last two characters: the last one may only be the selector for display in colour.
    ends = (any(map(of.emoji().__contains__, sentence[-2:])) for sentence in sentences)
    return all(sentences) and all(end or next_ in of.emoji() for end, next_ in zip(ends, following, strict=True))


def line_indent(text: str) -> bool:
    """Require that each line is indented more than the one before."""
    indents = [len(line) - len(line.lstrip(" ")) for line in text.split("\n") if line.strip()]
    return all(before < after for before, after in pairwise(indents))


def quote_unquote(text: str) -> bool:
    """Require unquoted text between two quoted phrases, and after the last."""
    plain = text.replace("“", '"').replace("”", '"').replace("'\"'", "")
    plain = "".join(plain.split())
    return '""' not in plain and not plain.strip(string.digits + string.punctuation.replace('"', "")).endswith('"')


def marked_list(text: str, sep: str) -> bool:
    return text.count(sep) >= 2


def thesis(text: str) -> bool:
    """Require text in italics by HTML, and more text after it."""
    # If the first tag is not closed, no later one is.
    starts = {tag: text.find(f"<{tag}>") for tag in _ITALICS}
    ends = {tag: text.find(f"</{tag}>", start) for tag, start in starts.items() if start >= 0}
    closed = [tag for tag, end in ends.items() if end >= 0]
    if not closed:
        return False
    tag = min(closed, key=starts.__getitem__)
    inner, behind = text[starts[tag] + len(f"<{tag}>") : ends[tag]], text[ends[tag] + len(f"</{tag}>") :]
    return bool(inner.strip()) and bool(behind.strip())


def sub_bullets(text: str) -> bool:
    """Require bullets `*`, each followed by a `-`."""
    _, *bullets = text.split("*")
    return bool(bullets) and all("-" in bullet for bullet in bullets)


def sentences_then_bullets(text: str) -> bool:
    """Require at least two sentences that end in a period, then at least two lines with `*`, and nothing else."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    bullets = [line.startswith("*") for line in lines]
    first = bullets.index(True) if True in bullets else len(lines)
    count = sum(sentence.endswith(".") for line in lines[:first] for sentence in of.sentences(line))
    return count >= 2 and all(bullets[first:]) and len(lines) - first >= 2


def title_case(text: str) -> bool:
    """Allow no word that begins with a small letter, except words in mixed case such as iPhone."""
    small = (word for word in of.whole_words(text) if word[0].islower())
    return not any(word[1:].islower() or word[1:].isupper() or not word[1:] for word in small)


def template(text: str) -> bool:
    return all(part in text for part in _TEMPLATE)


def no_whitespace(text: str) -> bool:
    return not any(character.isspace() for character in text)
