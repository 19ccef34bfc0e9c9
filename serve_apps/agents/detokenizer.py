"""Text of tokens as they come: no character in two parts, no part of what ends the answer."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""What a space is in vocabularies of SentencePiece."""
_BROKEN = "\N{REPLACEMENT CHARACTER}"
_MOST_HELD = 3
"""Tokens that may wait for the rest of a character, which has four bytes at most."""


def _byte_of_character() -> dict[str, int]:
    """Byte-level vocabularies write each byte as a character: a printable one as itself, the others from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}


BYTES = _byte_of_character()


class Detokenizer:
    """skips: special tokens are left out."""

    def __init__(self, tokenizer: Any, *, skips: bool) -> None:
        self._tokenizer, self._skips = tokenizer, skips
        self._ids: list[int] = []
        self._from = self._whole = self._read = 0
        """The text of tokens before `_read` is out. At `_whole` a character ended; what follows is decoded with the
        tokens from `_from` on, for the space between two."""

    def add(self, tokens: Iterable[int]) -> str:
        """The text that is whole with them."""
        self._ids += tokens
        oldest = max(self._read, len(self._ids) - _MOST_HELD)
        for end in range(len(self._ids), oldest, -1):
            text = self._until(end)
            if not text.endswith(_BROKEN):
                self._from, self._whole, self._read = self._whole, end, end
                return text
        text, self._read = self._until(oldest), oldest
        return text

    def end(self) -> str:
        """What is left, whole or not."""
        text, self._read = self._until(len(self._ids)), len(self._ids)
        return text

    def piece(self, token: int) -> bytes:
        """The bytes of one token, for log-probs: it may be a part of a character."""
        name = self._tokenizer.convert_ids_to_tokens(token)
        text = str(self._tokenizer.decode([token], skip_special_tokens=False))
        if name is None or _BROKEN not in text:
            is_spaced = name is not None and name.startswith(_SPACE) and not text.startswith(" ")
            return (" " + text if is_spaced else text).encode()
        if found := _BYTE.fullmatch(name):
            return bytes([int(found[1], 16)])
        return bytes(BYTES[c] for c in name) if all(c in BYTES for c in name) else text.encode()

    def _until(self, end: int) -> str:
        """What is not out yet."""
        return self._decode(end)[len(self._decode(self._read)) :]

    def _decode(self, end: int) -> str:
        return str(self._tokenizer.decode(self._ids[self._from : end], skip_special_tokens=self._skips))


class StopFilter:
    """Text up to the first stop string. matched: the one that was found."""

    def __init__(self, stops: Sequence[str], *, trims: bool) -> None:
        self._stops, self._trims = tuple(stops), trims
        self._held = ""
        self.matched: str | None = None

    def add(self, text: str) -> str:
        """The text that is before every stop string, and cannot be the beginning of one."""
        if self.matched is not None:
            return "" if self._trims else text
        text = self._held + text
        found = [(text.index(stop), stop) for stop in self._stops if stop in text]
        if found:
            at, self.matched = min(found)
            self._held = ""
            return text[:at] if self._trims else text
        held = max((_overlap(text, stop) for stop in self._stops), default=0) if self._trims else 0
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def end(self) -> str:
        """What was held, and began no stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Characters at the text's end with which the stop string begins."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
