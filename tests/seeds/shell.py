"""`read_fragments`: the commands and arrays of flags in a page or a script of slime's users."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import Annotated

from schemas.doc import doc


class Kind(StrEnum):
    """The use of a fragment."""

    TRAIN = "training"
    FLAGS = "flags"
    CONVERT = "conversion"
    MENTION = "one flag"


@dataclass(frozen=True, slots=True)
class Fragment:
    """A part of a page that slime's users start or put into a command line."""

    line: Annotated[int, doc("Its first line, from 1 on.")]
    kind: Kind
    words: Annotated[tuple[str, ...], doc("Flags and their values, with arrays written out.")]
    model: Annotated[str | None, doc("Name of the file in scripts/models that was sourced before it.")] = None

    def __str__(self) -> str:
        text = " ".join(self.words)
        return f"line {self.line}, {self.kind.value}: {text[:70]}{'...' if len(text) > 70 else ''}"


ARRAY = re.compile(r"^(\w+)\+?=\((.*)$")
SOURCE = re.compile(r"\bsource\s+\S*models/([\w.-]+)\.sh")
TRAIN = re.compile(r"(?:\S*/)?train(?:_async)?\.py$")
CONVERT = re.compile(r"(?:\S*/)?tools/convert_\w+\.py$")
LINE = re.compile(r"^\s*--[a-z][a-z0-9-]*(?=\s|$)")
MENTION = re.compile(r"^(?:-\s+)?(--[a-z][a-z0-9-]+[a-z0-9])(?=[:A-Z])")
PLACEHOLDER = re.compile(r"^(?:(?:--)?\.\.\.|\\)$")
PROSE = re.compile(r"[,.](?:\s|$)|(?<!\$)\(|\b(?:and|iterations|e\.g\.)")
SEQUENCE = re.compile(r"\$\(seq (\d+) (\d+) (\d+)\)")
PRODUCT = re.compile(r"\$\(\(((?:\s*\d+\s*\*)*\s*\d+)\s*\)\)")
LISTS = frozenset(("--eval-prompt-data",))
"""Flags that a command line may have more than once."""


def read_fragments(text: str) -> Iterator[Fragment]:
    """Yield the fragments of a text in its order. Names of arrays that it does not define are left out."""
    lines, number = text.splitlines(), 0
    arrays: dict[str, tuple[str, ...]] = {}
    model: str | None = None
    while number < len(lines):
        first, line = number, lines[number].strip()
        number += 1
        if match := SOURCE.search(line):
            model = match[1]
        if match := ARRAY.match(line):
            body = [match[2]]
            while ")" not in _bare(body[-1]) and number < len(lines):
                body.append(lines[number])
                number += 1
            words = _words("\n".join(body).replace(")", " "))
            arrays[match[1]] = arrays.get(match[1], ()) + words
            if flags := _flags(words, arrays):
                yield Fragment(first + 1, Kind.FLAGS, flags, model)
        elif _is_loose(lines[first]) or _is_command(line):
            block = [lines[first]]
            while number < len(lines) and _goes_on(block, lines[number]):
                block.append(lines[number])
                number += 1
            for start, part in _alternatives(first + 1, block):
                if fragment := _command(start, _words("\n".join(part)), arrays, model):
                    yield fragment
        elif match := MENTION.match(line):
            yield Fragment(first + 1, Kind.MENTION, (match[1],))


def _is_loose(line: str) -> bool:
    """Return whether a line has flags alone, not a sentence about one."""
    return bool(LINE.match(line)) and not PROSE.search(_bare(line))


def _is_command(line: str) -> bool:
    words = line.split()
    named = any(TRAIN.match(word) or CONVERT.match(word) for word in words) and "python" in line
    return line.endswith("\\") or (named and not PROSE.search(line))


def _alternatives(line: int, block: list[str]) -> list[tuple[int, list[str]]]:
    """Return each line by itself, with its number, if lines of flags repeat a flag: a reader takes one of them."""
    flags = [word for text in block for word in _words(text) if word.startswith("--") and word not in LISTS]
    if not LINE.match(block[0]) or len(flags) == len(set(flags)):
        return [(line, block)]
    return [(line + index, [text]) for index, text in enumerate(block)]


def _goes_on(block: list[str], line: str) -> bool:
    """Return whether a line belongs to the command above: after a backslash, or as one more line of flags."""
    before = _bare(block[-1]).rstrip()
    if before.endswith("\\") or (not before and len(block) > 1 and line.strip()):
        return True
    return _is_loose(line) and bool(LINE.match(block[0]))


def _bare(line: str) -> str:
    """Return the line without a comment."""
    return re.sub(r"(^|\s)#.*$", "", line)


def _words(text: str) -> tuple[str, ...]:
    bare = " ".join(_bare(line).rstrip().removesuffix("\\") for line in text.splitlines())
    bare = PRODUCT.sub(lambda match: str(prod(map(int, match[1].split("*")))), bare)
    bare = SEQUENCE.sub(lambda match: " ".join(map(str, range(int(match[1]), int(match[3]) + 1, int(match[2])))), bare)
    try:
        return tuple(shlex.split(bare))
    except ValueError:  # a quote that the page does not close
        return tuple(bare.split())


def _flags(words: tuple[str, ...], arrays: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the words from the first flag on, with arrays written out; not `MODEL_ARGS`, which is a model's preset."""
    flat: list[str] = []
    for word in words:
        name = re.fullmatch(r"\$\{(\w+)\[@\]\}", word)
        flat.extend(arrays.get(name[1], ()) if name and name[1] != "MODEL_ARGS" else [word] * (name is None))
    start = next((index for index, word in enumerate(flat) if word.startswith("--") and len(word) > 2), len(flat))
    return tuple(word for word in flat[start:] if not PLACEHOLDER.match(word))


def _command(
    line: int, words: tuple[str, ...], arrays: dict[str, tuple[str, ...]], model: str | None
) -> Fragment | None:
    for index, word in enumerate(words):
        if TRAIN.match(word):
            flags = _flags(words[index + 1 :], arrays)
            return Fragment(line, Kind.TRAIN, flags, model) if flags else None
        if CONVERT.match(word):
            flags = _flags(words[index + 1 :], arrays)
            return Fragment(line, Kind.CONVERT, (word, *flags), model) if flags else None
    flags = _flags(words, arrays)
    if not flags or not words[0].startswith("--"):
        return None
    return Fragment(line, Kind.MENTION if len(flags) == 1 else Kind.FLAGS, flags, model)
