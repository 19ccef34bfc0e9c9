"""Text from outside (a user's function, a file, a request, an archive) made safe to store, to send and to print.

Events and answers must be valid Unicode, messages must be short, and a terminal must not obey what it shows.
"""

import re

MESSAGE_CHARACTERS = 2_000
"""Characters of a message about a failure that are kept: enough for a reason, little enough for thousands of events."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""C0 and C1 control characters but for tab and newline, line separators, bidirectional controls, lone surrogates."""


def valid_text(text: str, limit: int | None = None) -> str:
    """Return `text` with U+FFFD for each lone surrogate, so that it can be encoded as UTF-8.

    With a limit, a longer text is cut to that many characters; its end says how many were left out.
    """
    if limit is not None and len(text) > limit:
        end = f"... ({len(text):,} characters)"
        text = text[: max(limit - len(end), 0)] + end
    if text.isascii():
        return text
    return _SURROGATE.sub("\ufffd", text)


def message_text(error: BaseException | str) -> str:
    """Return the text of an exception, valid and short. An exception whose `__str__` raises has its type's name."""
    try:
        text = str(error)
    except Exception:
        text = f"{type(error).__name__} (its text cannot be read)"
    return valid_text(text, MESSAGE_CHARACTERS)


def terminal_text(text: str) -> str:
    """Return `text` with each control character as an escape such as `\\x1b`: a terminal shows it and obeys nothing."""
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)
