"""Texts that go in circles. Needs no torch."""

from __future__ import annotations

import zlib

WINDOW = 10_000
"""Characters looked at, the last ones; a text that is not longer is never called repetitive."""
MAX_RATIO = 10.0


def has_repetition(text: str) -> bool:
    """Whether the end of a long text compresses more than tenfold (zlib at level 9)."""
    if len(text) <= WINDOW:
        return False
    tail = text[-WINDOW:].encode()
    return len(tail) / len(zlib.compress(tail, 9)) > MAX_RATIO
