"""`commands_of`: the command lines of slime-events on a page, as words."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`((?:\.venv/bin/)?slime-events [^`]+)`")
_BEGINS = re.compile(r"^(?:\$ |next: |\s+(?=\.venv/bin/)|[\w-]+ \| )?(?:\.venv/bin/)?slime-events(?= )")
_PLACEHOLDER = re.compile(r"^(?:V|VERSION|N)$")


@dataclass(frozen=True, slots=True)
class Command:
    """One command line. words: without the program's name, and without the `...` that a page may have in it."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: slime-events {shlex.join(self.words)}"


def commands_of(page: Path) -> Iterator[Command]:
    """Return the commands of code blocks, and of code in the text."""
    text = page.read_text(encoding="utf-8")
    for block in _FENCE.findall(text):
        for line in _lines(block):
            yield _command(page.name, line)
    for line in _INLINE.findall(_FENCE.sub("", text)):
        yield _command(page.name, line)


def _lines(block: str) -> Iterator[str]:
    """Each command on one line: continues after a backslash, and up to the quote that closes."""
    lines = iter(re.sub(r"\s*\\\n\s*", " ", block).splitlines())
    for line in lines:
        if not _BEGINS.match(line):
            continue
        while line.count('"') % 2:
            line += "\n" + next(lines)
        begin, quote, rest = line.lstrip().partition('"')
        # What follows two blanks is a remark about the command.
        yield re.sub(r"(?<=\S)  .*", "", begin) + (quote + rest if re.search(r"\S  ", begin) is None else "")


def _command(page: str, line: str) -> Command:
    lexer = shlex.shlex(line.removeprefix("next: ").removeprefix("$ "), posix=True, punctuation_chars="|")
    lexer.whitespace_split, lexer.commenters = True, "#"
    words = list(lexer)
    begin = next(i for i, word in enumerate(words) if word.endswith("slime-events")) + 1
    piped = next((i for i, word in enumerate(words) if word == "|" and i > begin), len(words))
    return Command(page, tuple(_value(word) for word in words[begin:piped] if word != "..."))


def _value(word: str) -> str:
    """A word of a synopsis as one could type it."""
    plain = word.removeprefix("[").removesuffix("]") if word[:1] == "[" or word[-1:] == "]" else word
    return "5" if _PLACEHOLDER.match(plain) else plain
