"""Make text from outside (a user's function, a file, a request, an archive) safe to store, send and print.

Events and answers must be valid Unicode, messages must be short, and text must not control a terminal.
"""

import re
import reprlib
from itertools import islice
from typing import Any

MESSAGE_CHARACTERS = 2_000
"""Most characters of a failure's message: enough for a reason, and small enough for thousands of events."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""C0 and C1 control characters except tab and newline, line separators, bidirectional controls, lone surrogates."""


def valid_text(text: str, limit: int | None = None) -> str:
    """Return `text` with U+FFFD for each lone surrogate, so that it can be encoded as UTF-8.

    A text longer than `limit` is cut to `limit` characters; its end states the original length.
    """
    if limit is not None and len(text) > limit:
        end = f"... ({len(text):,} characters)"
        text = text[: max(limit - len(end), 0)] + end
    if text.isascii():
        return text
    return _SURROGATE.sub("\ufffd", text)


def message_text(error: BaseException | str, limit: int = MESSAGE_CHARACTERS) -> str:
    """Return the text of an exception, valid and short; its type's name if its `__str__` raises."""
    try:
        text = str.__str__(str(error))  # a subclass of str may override `__str__`
    except BaseException:  # a user's `__str__` may raise anything
        text = f"{type(error).__name__} (its text cannot be read)"
    return valid_text(text, limit)


def raised_text(error: BaseException, limit: int = MESSAGE_CHARACTERS) -> str:
    """Return `ValueError: <its text>` for an exception of a user's function, valid and short."""
    return f"{type(error).__name__}: {message_text(error, limit)}"


def repr_text(value: object, limit: int = 120) -> str:
    """Return the `repr` of a value, valid and cut. Only the beginning of a large value is read."""
    try:
        text = str.__str__(_beginning.repr(value))
    except BaseException:  # a user's `__repr__` may raise anything
        text = f"<{type(value).__name__}>"
    return valid_text(text, limit)


class _Beginning(reprlib.Repr):
    """`repr` of a container's first items, unsorted: sorting a dict of millions takes seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = self.maxdeque = 30
        self.maxstring = self.maxother = self.maxlong = 400

    def repr_dict(self, value: dict[Any, Any], level: int) -> str:
        if level <= 0:
            return "{...}"
        items = [f"{self.repr1(key, level - 1)}: {self.repr1(item, level - 1)}"
                 for key, item in islice(value.items(), self.maxdict)]  # fmt: skip
        return "{" + ", ".join(items + ["..."] * (len(value) > self.maxdict)) + "}"

    def repr_set(self, value: set[Any], level: int) -> str:
        if not value or level <= 0:
            return "set(...)" if value else "set()"
        items = [self.repr1(item, level - 1) for item in islice(value, self.maxset)]
        return "{" + ", ".join(items + ["..."] * (len(value) > self.maxset)) + "}"

    def repr_bytes(self, value: bytes, level: int) -> str:
        return repr(value[: self.maxstring])

    repr_bytearray = repr_bytes


_beginning = _Beginning()


def terminal_text(text: str) -> str:
    """Return `text` with each control character as an escape such as `\\x1b`, so that it cannot control a terminal."""
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)
