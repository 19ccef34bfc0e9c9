"""Distrust of texts that only an archive names: its addresses are not connected to, its functions not loaded.

An archive may come from a third party. Its settings name URLs (with references to secrets), functions and commands.
While such a run is open its texts are doubted, and code that connects or loads calls `check_trusted` first. A text on
the command line is trusted, and `--trust-archive` trusts all texts.
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
    """Trust the words of a command line, or other texts that the user wrote."""
    for word in words:
        _named.update((word, word.partition("=")[2]))


@contextlib.contextmanager
def doubting(texts: Iterable[str], but: Iterable[str] = ()) -> Iterator[None]:
    """Doubt these texts within the context, except those in `but`."""
    doubted = Counter({text for text in texts if text} - {*but})
    _doubted.update(doubted)
    try:
        yield
    finally:
        _doubted.subtract(doubted)


@contextlib.contextmanager
def trusting() -> Iterator[None]:
    """Doubt nothing within the context: for a run's role, whose settings were checked when the run started."""
    global _trusting
    _trusting += 1
    try:
        yield
    finally:
        _trusting -= 1


def is_doubted(text: str) -> bool:
    """Return whether the text, or a list of addresses that contains it, is doubted."""
    text = text.strip()
    if not text or _trusting or not any(_doubted.values()) or FLAG in _named or text in _named:
        return False
    if _doubted[text] > 0:
        return True
    is_address = "://" in text or "${" in text
    return is_address and any(count > 0 and text in whole and whole not in _named for whole, count in _doubted.items())


def check_trusted(text: str) -> None:
    """Raises UntrustedText if the text is doubted."""
    if is_doubted(text):
        raise UntrustedText(
            f"only the archive names {terminal_text(text)}, and names from an archive are not connected to, loaded or "
            f"run: give it as a flag, or {FLAG} if the archive is your own"
        )
