"""IFBench's instructions `words:` and `sentence:`: choice and position of words in a response."""

from __future__ import annotations

import re
import string
from collections import Counter
from itertools import pairwise

from schemas.errors import UngradableSample
from slime_events.plugins.rewards.ifbench import text as of

_CLUSTER = re.compile(r"[bcdfghjklmnpqrstvwxyz]{2}")
_PRIMES = frozenset(n for n in range(2, 98) if all(n % smaller for smaller in range(2, n)))


def alphabet(text: str) -> bool:
    """Require that each word begins with the letter after that of the word before. A follows Z."""
    letters = [word[0].lower() for word in of.plain_words(text)]
    places = [string.ascii_lowercase.find(letter) for letter in letters]
    return bool(places) and -1 not in places and all((after - before) % 26 == 1 for before, after in pairwise(places))


def vowels(text: str) -> bool:
    """Require one paragraph with at most three different vowels."""
    return "\n" not in text.strip() and len(set(text.lower()) & set("aeiou")) <= 3


def consonants(text: str) -> bool:
    """Require two consonants in a row in each word."""
    return all(_CLUSTER.search(word) for word in text.lower().split())


def palindromes(text: str) -> bool:
    """Require ten palindromes of at least five letters."""
    return sum(len(word) >= 5 and word == word[::-1] for word in of.plain_words(text.lower())) >= 10


def prime_lengths(text: str) -> bool:
    return all(len(word) in _PRIMES for word in of.plain_words(text))


def repeats(text: str, small_n: int) -> bool:
    return max(Counter(of.plain_words(text.lower())).values(), default=0) <= small_n


def no_consecutive(text: str) -> bool:
    """Allow no two words in a row that begin with the same letter."""
    return all(before[0] != after[0] for before, after in pairwise(of.plain_words(text.lower())))


def odd_even_syllables(text: str) -> bool:
    """Require that words with an odd and an even number of syllables alternate."""
    try:
        import syllapy
    except ImportError:
        raise UngradableSample("words:odd_even_syllables needs syllapy: pip install syllapy") from None
    odd = [syllapy.count(word) % 2 for word in of.plain_words(text.lower())]
    return all(before != after for before, after in pairwise(odd))


def start_verb(text: str) -> bool:
    """Require a verb as first word, by NLTK's tagger."""
    tokens = of.tokens(text)
    try:
        import nltk

        return bool(tokens) and str(nltk.pos_tag(tokens)[0][1]).startswith("VB")
    except (ImportError, LookupError):
        how = "pip install nltk, and python -m nltk.downloader averaged_perceptron_tagger_eng"
        raise UngradableSample(f"words:start_verb needs a tagger: {how}") from None


def last_first(text: str) -> bool:
    """Require that a sentence begins with the last word of the one before."""
    sentences = [of.bare(sentence).lower().split() for sentence in of.sentences(text)]
    return all(before and after and before[-1] == after[0] for before, after in pairwise(sentences))


def paragraph_last_first(text: str) -> bool:
    """Require that each paragraph (here a line) ends with the word that it begins with."""
    paragraphs = (of.bare(line.strip().lower()).split() for line in text.split("\n"))
    return all(words[0] == words[-1] for words in paragraphs if words)


def keyword_at(text: str, keyword: str, n: int, m: int) -> bool:
    """Require the keyword as the m-th word of the n-th sentence. Both count from 1."""
    sentences = of.sentences(text)
    words = of.word_tokens(sentences[n - 1]) if 0 < n <= len(sentences) else []
    return 0 < m <= len(words) and words[m - 1].lower() == keyword.strip().lower()


def second_words(text: str, keyword: str) -> bool:
    """Require the keyword as second word, and as last word but one."""
    words = [word.lower() for word in of.word_tokens(text)]
    return len(words) > 1 and words[1] == words[-2] == keyword.strip().lower()


def alliteration(text: str) -> bool:
    """Require that each sentence has more words in alliterations than the one before."""
    counts = [_alliterating(sentence) for sentence in of.sentences(text)]
    return all(before < after for before, after in pairwise(counts))


def _alliterating(sentence: str) -> int:
    first = [word[0] for word in (word.lstrip(string.punctuation) for word in sentence.lower().split()) if word]
    alike = [before == after for before, after in pairwise(first)]
    return sum(alike) + sum(now and not before for before, now in pairwise([False, *alike]))


def keyword_in_sentence(text: str, word: str, N: int) -> bool:  # noqa: N803  IFBench's name
    sentences = of.sentences(text)
    return 0 < N <= len(sentences) and bool(re.search(rf"\b{re.escape(word)}\b", sentences[N - 1], re.IGNORECASE))


def sentence_increment(text: str, small_n: int) -> bool:
    """Require that each sentence has exactly `small_n` words more than the one before."""
    counts = [len(of.plain_words(sentence)) for sentence in of.sentences(text)]
    return bool(counts) and all(after - before == small_n for before, after in pairwise(counts))
