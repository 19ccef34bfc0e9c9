"""`json_value`: a value of a prompt file, a producer or a user's data source, as the log stores it."""

import contextlib
import math
from typing import Any

from schemas.text import valid_text

DEPTH = 64
"""Most nesting levels of a value, because readers of the log recurse into it."""


class BadValue(Exception):
    """A value that the log cannot store. field: its path, such as `metadata.born`. message: a clause."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field!r} {message}")
        self.field, self.message = field, message


def json_value(value: Any, field: str, depth: int = DEPTH) -> Any:
    """Return None, booleans, numbers, texts, lists, and objects with text keys. Raises BadValue for anything else.

    A tuple becomes a list; a scalar or array of numpy or torch becomes a number or a list.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return valid_text(str.__str__(value))
    if isinstance(value, int):
        if not is_stored(value):
            digits = int(value.bit_length() * math.log10(2)) + 1
            raise BadValue(
                field, f"is an integer of some {digits} digits, and 64 bits are the most: write it as a text"
            )
        return int(value)
    if isinstance(value, float):
        return float(value)
    if not depth:
        raise BadValue(f"{field:.80}", f"is nested deeper than {DEPTH} levels")
    if isinstance(value, dict):
        return _object(value, field, depth)
    if isinstance(value, list | tuple):
        return [json_value(item, f"{field}[{place}]", depth - 1) for place, item in enumerate(value)]
    if callable(getattr(value, "tolist", None)):
        return json_value(value.tolist(), field, depth - 1)
    raise BadValue(field, f"is a {type(value).__name__}, which is no JSON value")


def label_value(value: Any, field: str) -> Any:
    """Return a label as `json_value` does, but an integer beyond 64 bits as decimal text.

    Graders compare the text as they compare a number.
    """
    if isinstance(value, int) and not is_stored(value):
        with contextlib.suppress(ValueError):  # Python converts at most some 4,300 digits
            return str(value)
    return json_value(value, field)


def is_stored(value: int) -> bool:
    """Return whether an integer fits in 64 bits."""
    return -(2**63) <= value < 2**63


def _object(value: dict[Any, Any], field: str, depth: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise BadValue(field, f"has a key that is a {type(key).__name__}: keys have to be texts")
        name = valid_text(str.__str__(key))
        result[name] = json_value(item, f"{field}.{name:.80}", depth - 1)
    return result
