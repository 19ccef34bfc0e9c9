"""`plain`: what a user's function returned, as an event may hold it.

Whatever it is: a cycle, an object whose `repr` raises, half a character, ten million keys. What is no JSON value
becomes a text, and of what is too large the beginning is kept with a note.
"""

import math
from collections.abc import Mapping
from itertools import islice
from typing import Any

from schemas.text import repr_text, valid_text

DEPTH = 8
PLAIN_BYTES = 1024 * 1024
"""Of one value, encoded: an event has four times as much room."""
CUT = "..."
"""Key of the note in a dict that was cut."""
_OTHER = 200
"""Characters of a value that is no JSON value."""


def plain(value: Any, depth: int = DEPTH, room: int = PLAIN_BYTES) -> Any:
    """`value` as JSON can hold it: numbers, texts, lists, dicts; anything else as its `repr`, shortened.

    room: bytes that it may take, encoded. What a hostile object raises when it is looked at is passed on.
    """
    return _Plain(room).of(value, depth)


class _Plain:
    """room: bytes that are left."""

    def __init__(self, room: int) -> None:
        self._room = room

    def of(self, value: Any, depth: int) -> Any:
        """The value; its bytes are taken from the room."""
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
            return self.of(value.tolist(), depth - 1)
        return self._text(repr_text(value, _OTHER))

    def _text(self, text: str) -> str:
        most = max(self._room, 0) // (1 if text.isascii() else 4)
        text = valid_text(text, most if len(text) > most else None)
        self._room -= len(text) if text.isascii() else len(text.encode())
        return text

    def _dict(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, item in value.items():
            if self._room <= 0:
                return made | {CUT: f"{len(made):,} of {len(value):,} entries"}
            name = self._text(str.__str__(key if isinstance(key, str) else str(key)))
            made[name] = self.of(item, depth - 1)
        return made

    def _list(self, value: Any, depth: int) -> list[Any]:
        made: list[Any] = []
        for item in islice(value, len(value)):  # one that grows while it is read has an end
            if self._room <= 0:
                return [*made, f"{CUT} ({len(made):,} of {len(value):,} values)"]
            made.append(self.of(item, depth - 1))
        return made

    def _has_room_for(self, array: Any) -> bool:
        """Whether an array may become a list: a number takes eight bytes of it at most, and one at least here."""
        size = getattr(array, "nbytes", 0)
        return not isinstance(size, int) or size <= 8 * max(self._room, 0)
