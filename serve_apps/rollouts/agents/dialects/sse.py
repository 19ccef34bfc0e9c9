"""Server-sent events."""

from collections.abc import Mapping

import msgspec

DONE = b"data: [DONE]\n\n"


def data(value: Mapping[str, object]) -> bytes:
    """Return an event without a name."""
    return b"data: %b\n\n" % msgspec.json.encode(value)


def named(value: Mapping[str, object]) -> bytes:
    """Return an event whose name is the `type` of its value."""
    return b"event: %b\ndata: %b\n\n" % (str(value["type"]).encode(), msgspec.json.encode(value))
