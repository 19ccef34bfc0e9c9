"""Server-sent events as the APIs have them."""

from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"


def data(value: Any) -> bytes:
    """An event without a name."""
    return b"data: %b\n\n" % msgspec.json.encode(value)


def named(value: dict[str, Any]) -> bytes:
    """An event that has its type as its name."""
    return b"event: %b\ndata: %b\n\n" % (value["type"].encode(), msgspec.json.encode(value))
