"""`framed`: a head and arrays of numbers as bytes that the browser maps without parsing."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

FRAME = "application/vnd.slime-events.frame"
"""Media type of `framed`."""
TYPES = {"int32": "<i4", "float32": "<f4", "float64": "<f8", "uint8": "u1", "uint16": "<u2"}
"""Types of arrays, by their name in a head."""


def framed(head: msgspec.Struct, arrays: Mapping[str, tuple[str, npt.ArrayLike]]) -> bytes:
    """Return a head and arrays as bytes: the length of the head (uint32), the head as JSON, padded with spaces so that
    the arrays begin at a multiple of 8, then each array, padded with zeros to a multiple of 8. All little-endian.

    arrays: name to type and numbers, as the head names them in order.
    """
    text = msgspec.json.encode(head)
    text += b" " * (-(len(text) + 4) % 8)
    parts = [np.asarray(numbers).astype(TYPES[kind]).tobytes() for kind, numbers in arrays.values()]
    return len(text).to_bytes(4, "little") + text + b"".join(part + bytes(-len(part) % 8) for part in parts)
