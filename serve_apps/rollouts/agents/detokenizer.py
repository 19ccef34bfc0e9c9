"""Turns tokens into text while they come: characters stay whole, and stop strings are cut off."""

import re
from collections.abc import Iterable, Sequence

from serve_apps.rollouts.agents.rendering import ChatTokenizer

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""A space in vocabularies of SentencePiece."""
_BROKEN = "\N{REPLACEMENT CHARACTER}"
_MOST_HELD = 3
"""Most tokens that wait for the rest of a character, which has at most four bytes."""


def _byte_of_character() -> dict[str, int]:
    """Return the byte of each character in byte-level vocabularies: printable bytes stay, others start at 256."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}


BYTES = _byte_of_character()


class Detokenizer:
    """Returns the text of tokens piece by piece. skips: leave out special tokens."""

    def __init__(self, tokenizer: ChatTokenizer, *, skips: bool) -> None:
        self._tokenizer, self._skips = tokenizer, skips
        self._ids: list[int] = []
        self._from = self._whole = self._read = 0
        """Indices in `_ids`. Text before `_read` was returned. A character ends at `_whole`. Later tokens are decoded
        together with those from `_from` on, so that the space between two tokens is right."""

    def add(self, tokens: Iterable[int]) -> str:
        """Return the text that these tokens complete."""
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
        """Return the rest of the text, even if its last character is incomplete."""
        text, self._read = self._until(len(self._ids)), len(self._ids)
        return text

    def piece(self, token: int) -> bytes:
        """Return the bytes of one token, for log-probs. They may be a part of a character."""
        name = self._tokenizer.convert_ids_to_tokens(token)
        text = str(self._tokenizer.decode([token], skip_special_tokens=False))
        if name is None or _BROKEN not in text:
            is_spaced = name is not None and name.startswith(_SPACE) and not text.startswith(" ")
            return (" " + text if is_spaced else text).encode()
        if match := _BYTE.fullmatch(name):
            return bytes([int(match[1], 16)])
        return bytes(BYTES[c] for c in name) if all(c in BYTES for c in name) else text.encode()

    def _until(self, end: int) -> str:
        """Return the text up to token `end` that was not returned yet."""
        return self._decode(end)[len(self._decode(self._read)) :]

    def _decode(self, end: int) -> str:
        return str(self._tokenizer.decode(self._ids[self._from : end], skip_special_tokens=self._skips))


class StopFilter:
    """Passes on text up to the first stop string. matched: this stop string, once it occurs."""

    def __init__(self, stops: Sequence[str], *, trims: bool) -> None:
        self._stops, self._trims = tuple(stops), trims
        self._held = ""
        self.matched: str | None = None

    def add(self, text: str) -> str:
        """Return the text before any stop string. A possible beginning of a stop string is held back."""
        if self.matched is not None:
            return "" if self._trims else text
        text = self._held + text
        matches = [(text.index(stop), stop) for stop in self._stops if stop in text]
        if matches:
            at, self.matched = min(matches)
            self._held = ""
            return text[:at] if self._trims else text
        held = max((_overlap(text, stop) for stop in self._stops), default=0) if self._trims else 0
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def end(self) -> str:
        """Return the text that was held back."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the number of characters at the end of the text that begin the stop string."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
