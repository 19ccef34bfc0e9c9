"""IFBench's instructions `count:` and `ratio:`: counts of words, sentences and marks in a response."""

from __future__ import annotations

import re

from schemas.errors import UngradableSample
from slime_events.plugins.rewards.ifbench import text as of

_NAMES = (
    "Emma Liam Sophia Jackson Olivia Noah Ava Lucas Isabella Mason Mia Ethan Charlotte Alexander Amelia Benjamin "
    "Harper Leo Zoe Daniel Chloe Samuel Lily Matthew Grace Owen Abigail Gabriel Ella Jacob Scarlett Nathan Victoria "
    "Elijah Layla Nicholas Audrey David Hannah Christopher Penelope Thomas Nora Andrew Aria Joseph Claire Ryan Stella "
    "Jonathan"
)
_INTERROBANGS = ("?!", "!?")
_JAPANESE = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")
_TIMES = (1, 2, 3, 5, 7)


def word_range(text: str, min_words: int, max_words: int) -> bool:
    return min_words <= len(of.words(text)) <= max_words


def unique_words(text: str, N: int) -> bool:  # noqa: N803  IFBench's names
    return len({of.bare(word) for word in text.lower().split()} - {""}) >= N


def conjunctions(text: str, small_n: int) -> bool:
    """Count different coordinating conjunctions, in any case and punctuation."""
    return len({of.bare(word).lower() for word in text.split()} & of.CONJUNCTIONS) >= small_n


def person_names(text: str, N: int) -> bool:  # noqa: N803
    return sum(re.search(rf"\b{name}\b", text) is not None for name in _NAMES.split()) >= N


def numbers(text: str, N: int) -> bool:  # noqa: N803
    """Count numbers. 1,234.5 is one number."""
    return sum(len(re.findall(r"\d+", word)) for word in of.plain_words(text)) == N


def punctuation(text: str) -> bool:
    """Require each standard mark, and an interrobang besides."""
    if "‽" not in text and not any(mark in text for mark in _INTERROBANGS):
        return False
    interrobang = next((mark for mark in _INTERROBANGS if mark in text), "")
    return set(".,!?;:") <= set(text.replace(interrobang, "", 1) if interrobang else text)


def japanese_words(text: str, N: int) -> bool:  # noqa: N803
    """Require that every N-th word is Japanese. Numbers and punctuation are allowed instead."""
    if N == 0:
        raise UngradableSample("count:words_japanese needs N (metadata.kwargs) of at least 1")
    nth = (of.bare(word) for word in text.split()[N - 1 :: N])
    return all(_JAPANESE.search(word) for word in nth if word and not word.isdigit())


def pronouns(text: str, N: int) -> bool:  # noqa: N803
    return sum(token in of.PRONOUNS for token in of.tokens(text.lower().replace("/", " "))) >= N


def keywords(text: str, keyword1: str, keyword2: str, keyword3: str, keyword4: str, keyword5: str) -> bool:
    """Require the keywords as whole words, in any case: once, twice, 3, 5 and 7 times."""
    stripped = (word.strip() for word in (keyword1, keyword2, keyword3, keyword4, keyword5))
    counts = (len(re.findall(rf"\b{re.escape(word)}\b", text, re.IGNORECASE)) for word in stripped)
    return tuple(counts) == _TIMES


def stop_words(text: str, percentage: int) -> bool:
    """Allow at most `percentage` stop words in a hundred words."""
    words = of.words(text.lower())
    return bool(words) and 100 * sum(word in of.STOP_WORDS for word in words) / len(words) <= percentage


def sentence_types(text: str) -> bool:
    """Require twice as many declarative sentences as interrogative ones."""
    declarative, interrogative, _ = _types(text)
    return declarative == 2 * interrogative > 0


def sentence_balance(text: str) -> bool:
    """Require equal numbers of declarative, interrogative and exclamatory sentences."""
    declarative, interrogative, exclamatory = _types(text)
    return declarative == interrogative == exclamatory > 0


def _types(text: str) -> list[int]:
    sentences = of.sentences(text)
    return [sum(sentence.endswith(mark) for sentence in sentences) for mark in ".?!"]


def overlap(text: str, reference_text: str, percentage: int) -> bool:
    """Require that `percentage` (2 more or less) of the response's token trigrams also occur in the reference."""
    trigrams, reference = _trigrams(text), _trigrams(reference_text)
    return bool(trigrams) and abs(100 * len(trigrams & reference) / len(trigrams) - percentage) <= 2


def _trigrams(text: str) -> set[tuple[str, ...]]:
    tokens = of.tokens(text)
    return set(zip(tokens, tokens[1:], tokens[2:], strict=False))


def sentence_characters(text: str) -> bool:
    """Require three sentences of the same length, and no word twice."""
    sentences = of.sentences(text)
    words = of.plain_words(" ".join(sentences).lower())
    return len(sentences) == 3 and len(set(map(len, sentences))) == 1 and len(words) == len(set(words))
