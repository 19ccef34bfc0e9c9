"""Words, tokens, sentences and emoji of an English text, as IFBench counts them. No data files."""

from __future__ import annotations

import functools
import re
import string
import unicodedata
from collections.abc import Iterator

_EDGE = string.punctuation + " "
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)

_STOP_WORDS = (
    "a about above after again against ain all am an and any are aren as at be because been before being below between "
    "both but by can couldn d did didn do does doesn doing don down during each few for from further had hadn has hasn "
    "have haven having he her here hers herself him himself his how i if in into is isn it its itself just ll m ma me "
    "mightn more most mustn my myself needn no nor not now o of off on once only or other our ours ourselves out over "
    "own re s same shan she should shouldn so some such t than that the their theirs them themselves then there these "
    "they this those through to too under until up ve very was wasn we were weren what when where which while who whom "
    "why will with won wouldn y you your yours yourself yourselves"
)
_PRONOUNS = (
    "i me we us you he him she her it they them my mine our ours your yours his hers its their theirs myself ourselves "
    "yourself yourselves himself herself itself themselves this that these those who whom whose which what whoever "
    "whomever whatever whichever anybody anyone anything everybody everyone everything nobody nothing somebody someone "
    "something each either neither both all some any none"
)
STOP_WORDS, PRONOUNS = frozenset(_STOP_WORDS.split()), frozenset(_PRONOUNS.split())
CONJUNCTIONS = frozenset({"and", "but", "for", "nor", "or", "so", "yet"})

_TOKEN = re.compile(r"\w+(?:(?:[-./'’]|(?<=\d)[,:](?=\d))\w+)*|\.{2,}|-{2,}|[^\w\s]")
_CLITIC = re.compile(r"(.+?)(n['’]t|['’](?:s|m|d|ll|re|ve))", re.IGNORECASE)

_END = re.compile(r"\.{2,}|[.?!]")
_STARTERS = (
    *("Mr", "Mrs", "Ms", "Dr", "Prof", "Capt", "Cpt", "Lt", "He ", "She ", "It ", "They ", "Their ", "Our ", "We "),
    *("But ", "However ", "That ", "This ", "Wherever"),
)
_TITLE = re.compile(r"(?:Mr|St|Mrs|Ms|Dr)$")
_SUFFIX = re.compile(r" (?:Inc|Ltd|Jr|Sr|Co)$")
_DOMAIN = re.compile(r"com|net|org|io|gov|edu|me")
_ACRONYM = re.compile(r"(?:[A-Za-z]\.){1,2}[A-Za-z]$")
_CAPITALS = re.compile(r"[A-Z]\.[A-Z](?:\.[A-Z])?$")
_LETTER, _NEXT_LETTER = re.compile(r"[A-Za-z]$"), re.compile(r"[A-Za-z]\.")
_INITIAL = re.compile(r"\s[A-Za-z]$")
_QUOTES = {".": '"”', "?": '"', "!": '"'}

_EMOJI = (
    "a9 ae 203c 2049 20e3 2122 2139 2194-2199 21a9-21aa 231a-231b 2328 23cf 23e9-23f3 23f8-23fa 24c2 25aa-25ab 25b6 "
    "25c0 25fb-25fe 2600-2604 260e 2611 2614-2615 2618 261d 2620 2622-2623 2626 262a 262e-262f 2638-263a 2640 2642 "
    "2648-2653 265f-2660 2663 2665-2666 2668 267b 267e-267f 2692-2697 2699 269b-269c 26a0-26a1 26a7 26aa-26ab "
    "26b0-26b1 26bd-26be 26c4-26c5 26c8 26ce-26cf 26d1 26d3-26d4 26e9-26ea 26f0-26f5 26f7-26fa 26fd 2702 2705 "
    "2708-270d 270f 2712 2714 2716 271d 2721 2728 2733-2734 2744 2747 274c 274e 2753-2755 2757 2763-2764 2795-2797 "
    "27a1 27b0 27bf 2934-2935 2b05-2b07 2b1b-2b1c 2b50 2b55 3030 303d 3297 3299 1f004 1f0cf 1f170-1f171 1f17e-1f17f "
    "1f18e 1f191-1f19a 1f1e6-1f1ff 1f201-1f202 1f21a 1f22f 1f232-1f23a 1f250-1f251 1f300-1f321 1f324-1f393 "
    "1f396-1f397 1f399-1f39b 1f39e-1f3f0 1f3f3-1f3f5 1f3f7-1f4fd 1f4ff-1f53d 1f549-1f54e 1f550-1f567 1f56f-1f570 "
    "1f573-1f57a 1f587 1f58a-1f58d 1f590 1f595-1f596 1f5a4-1f5a5 1f5a8 1f5b1-1f5b2 1f5bc 1f5c2-1f5c4 1f5d1-1f5d3 "
    "1f5dc-1f5de 1f5e1 1f5e3 1f5e8 1f5ef 1f5f3 1f5fa-1f64f 1f680-1f6c5 1f6cb-1f6d2 1f6d5-1f6d9 1f6dc-1f6e5 1f6e9 "
    "1f6eb-1f6ec 1f6f0 1f6f3-1f6fc 1f7e0-1f7eb 1f7f0 1f90c-1f93a 1f93c-1f945 1f947-1f9ff 1fa70-1fa7c 1fa80-1fac6 "
    "1fac8 1facc-1fadd 1fadf-1faeb 1faef-1fafa e007f"
)
"""Code points of single characters that are emoji (Unicode 17), and those that end longer ones: keycaps, flags."""


@functools.cache
def emoji() -> frozenset[str]:
    """Return every character that is an emoji, or ends one."""
    spans = [[int(bound, 16) for bound in span.split("-")] for span in _EMOJI.split()]
    return frozenset(chr(code) for span in spans for code in range(span[0], span[-1] + 1))


def words(text: str) -> list[str]:
    """Return the runs of letters, digits and underscores."""
    return re.findall(r"\w+", text)


def plain_words(text: str) -> list[str]:
    """Return the words between white space, after all ASCII punctuation is removed."""
    return text.translate(NO_PUNCTUATION).split()


def bare(word: str) -> str:
    """Return the word without ASCII punctuation and blanks at both ends."""
    return word.strip(_EDGE)


def whole_words(text: str) -> list[str]:
    """Return words, with their hyphens and apostrophes, and punctuation marks."""
    return _TOKEN.findall(text)


def tokens(text: str) -> list[str]:
    """Return words and punctuation marks. A contraction is two tokens, as in the Penn Treebank: do, n't."""
    parts: list[str] = []
    for token in whole_words(text):
        contraction = _CLITIC.fullmatch(token)
        parts += contraction.groups() if contraction else [token]
    return parts


def word_tokens(text: str) -> list[str]:
    """Return the tokens without punctuation marks."""
    return [token for token in tokens(text) if any(letter.isalnum() for letter in token)]


def without_accents(text: str) -> str:
    """Return the text in ASCII: São Tomé -> Sao Tome."""
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")


def sentences(text: str) -> list[str]:
    """Split a text after each `.`, `?` and `!`, and after an ellipsis. Text after the last mark is a sentence, too.

    Periods of titles, initials, acronyms, numbers and web addresses end no sentence. A closing quote directly after an
    end mark changes places with it.
    """
    parts = [sentence.strip() for sentence in _sentences(f" {text}  ".replace("\n", " "))]
    return parts[:-1] if not parts[-1] else parts


def _sentences(text: str) -> Iterator[str]:
    start = 0
    for mark in _END.finditer(text):
        at, end = mark.span()
        if mark[0] == "." and not _ends(text, at):
            continue
        quote = text[end : end + 1] if end - at == 1 and text[end] in _QUOTES[mark[0]] else ""
        yield text[start:at] + quote + mark[0]
        start = end + len(quote)
    yield text[start:]


def _ends(text: str, at: int) -> bool:
    """Return whether the period at `at` ends a sentence."""
    before, behind = text[max(0, at - 8) : at], text[at + 1 : at + 12]
    starts = behind.startswith(" ") and behind[1:].startswith(_STARTERS)
    if _SUFFIX.search(before) or _CAPITALS.search(before):
        return starts
    if _TITLE.search(before) or _DOMAIN.match(behind) or (before[-1:].isdigit() and behind[:1].isdigit()):
        return False
    begins_acronym = _LETTER.search(before) and _NEXT_LETTER.match(behind)
    return not (begins_acronym or _ACRONYM.search(before) or _INITIAL.search(before))
