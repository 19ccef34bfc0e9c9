"""`json_value`: a value of a prompt file, of a producer or of a user's data source, as the log carries it."""

import math
from typing import Any

from schemas.text import valid_text

DEPTH = 64
"""Levels that a value may be nested. Readers of the log follow them by recursion."""
_LEAST, _MOST = -(2**63), 2**63


class BadValue(Exception):
    """A value that the log cannot carry. field: its path, such as `metadata.born`; message: one clause."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field!r} {message}")
        self.field, self.message = field, message


def json_value(value: Any, field: str, *, big_as_text: bool = True, depth: int = DEPTH) -> Any:
    """Return None, booleans, numbers, texts, lists, and objects with text keys; what else there is raises BadValue.

    An integer beyond 64 bits becomes its decimal text, which graders compare as they do a number; with `big_as_text`
    off it is refused, as in what a chat template prints. A tuple becomes a list, an array of numpy a list or number.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return valid_text(str.__str__(value))
    if isinstance(value, int):
        return _integer(int(value), field, big_as_text=big_as_text)
    if isinstance(value, float):
        return float(value)
    if not depth:
        raise BadValue(f"{field:.80}", f"is nested deeper than {DEPTH} levels")
    if isinstance(value, dict):
        return _object(value, field, big_as_text, depth)
    if isinstance(value, list | tuple):
        return [
            json_value(item, f"{field}[{place}]", big_as_text=big_as_text, depth=depth - 1)
            for place, item in enumerate(value)
        ]
    if callable(getattr(value, "tolist", None)):
        return json_value(value.tolist(), field, big_as_text=big_as_text, depth=depth - 1)
    raise BadValue(field, f"is a {type(value).__name__}, which is no JSON value")


def _object(value: dict[Any, Any], field: str, big_as_text: bool, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise BadValue(field, f"has a key that is a {type(key).__name__}: keys have to be texts")
        name = valid_text(str.__str__(key))
        made[name] = json_value(item, f"{field}.{name:.80}", big_as_text=big_as_text, depth=depth - 1)
    return made


def _integer(value: int, field: str, *, big_as_text: bool) -> int | str:
    if _LEAST <= value < _MOST:
        return value
    digits = int(value.bit_length() * math.log10(2)) + 1
    if not big_as_text:
        raise BadValue(field, f"is an integer of some {digits} digits, and 64 bits are the most here")
    try:
        return str(value)
    except ValueError:  # Python converts some 4,300 digits at most
        raise BadValue(field, f"is an integer of some {digits} digits: write it as a text") from None
