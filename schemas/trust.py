"""Doubt about texts that only an archive says: addresses are not connected to, functions are not loaded.

An archive may be somebody else's. Its settings name URLs, with references to secrets in them, functions and commands.
While such a run is open its texts are doubted, and whoever connects or loads asks here first. A text that stands on the
command line is not doubted, and with `--trust-archive` none is.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator

from schemas.errors import UntrustedText
from schemas.text import terminal_text

FLAG = "--trust-archive"
_doubted = Counter[str]()
_named = set[str]()
_trusting = 0


def name_words(words: Iterable[str]) -> None:
    """Take the words of a command line, or other texts of the user's own: whoever wrote them means them."""
    for word in words:
        _named.update((word, word.partition("=")[2]))


@contextlib.contextmanager
def doubting(texts: Iterable[str], but: Iterable[str] = ()) -> Iterator[None]:
    """Doubt these texts inside, but for those that are named in `but`."""
    doubted = Counter({text for text in texts if text} - {*but})
    _doubted.update(doubted)
    try:
        yield
    finally:
        _doubted.subtract(doubted)


@contextlib.contextmanager
def trusting() -> Iterator[None]:
    """Doubt nothing inside: a role of a run, whose settings were checked when it was started."""
    global _trusting
    _trusting += 1
    try:
        yield
    finally:
        _trusting -= 1


def is_doubted(text: str) -> bool:
    """Whether the text is doubted, or is an address that is a part of a doubted text (one of several with commas)."""
    text = text.strip()
    if not text or _trusting or not any(_doubted.values()) or FLAG in _named or text in _named:
        return False
    if _doubted[text] > 0:
        return True
    is_address = "://" in text or "${" in text
    return is_address and any(count > 0 and text in whole and whole not in _named for whole, count in _doubted.items())


def check_trusted(text: str) -> None:
    """Raises UntrustedText."""
    if is_doubted(text):
        raise UntrustedText(
            f"{terminal_text(text)} is named by the archive alone, and nothing that an archive names is connected to, "
            f"loaded or run: give it as a flag, or {FLAG} where the archive is your own"
        )
