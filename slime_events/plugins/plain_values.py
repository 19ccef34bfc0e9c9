"""`plain`: a value that a user's function returned, converted for storage in an event.

It accepts any object: a cycle, an object whose `repr` raises, an unpaired surrogate, ten million keys. A value that
JSON cannot hold becomes a text. A value that is too large is cut, with a note.
"""

import math
from collections.abc import Collection, Mapping
from itertools import islice
from typing import Any, Protocol, cast

from schemas.text import repr_text, valid_text

DEPTH = 8
PLAIN_BYTES = 1024 * 1024  # of one value, encoded; an event holds four times as much
CUT = "..."  # key of the note in a dict that was cut
_OTHER = 200  # characters of a value that JSON cannot hold


def plain(value: object, depth: int = DEPTH, room: int = PLAIN_BYTES) -> Any:
    """Return `value` in the types of JSON: numbers, texts, lists, dicts. Anything else becomes its `repr`, shortened.

    `room` is the maximum size of the encoded result [bytes]. Exceptions that a hostile object raises are passed on.
    """
    return _Plain(room).of(value, depth)


class Array(Protocol):
    """An array or tensor, of numpy or torch."""

    def tolist(self) -> object:
        """Return a number or nested lists of numbers."""


class _Plain:
    """Converter of one value. `room` is the number of bytes left."""

    def __init__(self, room: int) -> None:
        self._room = room

    def of(self, value: object, depth: int) -> Any:
        """Return the converted value, and subtract its bytes from the room."""
        self._room -= 1
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._text(str.__str__(value))
        if isinstance(value, int):
            self._room -= 8
            return int(value) if -(2**63) <= value < 2**63 else repr_text(value, _OTHER)
        if isinstance(value, float):
            self._room -= 8
            return float(value) if math.isfinite(value) else repr(float(value))
        if depth and isinstance(value, dict):
            return self._dict(value, depth)
        if depth and isinstance(value, list | tuple | set | frozenset):
            return self._list(value, depth)
        if depth and callable(getattr(value, "tolist", None)) and self._has_room_for(value):
            return self.of(cast("Array", value).tolist(), depth - 1)
        return self._text(repr_text(value, _OTHER))

    def _text(self, text: str) -> str:
        most = max(self._room, 0) // (1 if text.isascii() else 4)
        text = valid_text(text, most if len(text) > most else None)
        self._room -= len(text) if text.isascii() else len(text.encode())
        return text

    def _dict(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, item in value.items():
            if self._room <= 0:
                return result | {CUT: f"{len(result):,} of {len(value):,} entries"}
            name = self._text(str.__str__(key if isinstance(key, str) else str(key)))
            result[name] = self.of(item, depth - 1)
        return result

    def _list(self, value: Collection[object], depth: int) -> list[Any]:
        result: list[Any] = []
        for item in islice(value, len(value)):  # bounded, even if the list grows while it is read
            if self._room <= 0:
                return [*result, f"{CUT} ({len(result):,} of {len(value):,} values)"]
            result.append(self.of(item, depth - 1))
        return result

    def _has_room_for(self, array: object) -> bool:
        """Return whether an array may become a list: at most eight bytes per number there, at least one here."""
        size = getattr(array, "nbytes", 0)
        return not isinstance(size, int) or size <= 8 * max(self._room, 0)
