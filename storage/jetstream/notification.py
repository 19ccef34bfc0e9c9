"""A stored event on its way to somebody who is told of it: its position, and its bytes."""

from schemas.codec import decode
from schemas.errors import SchemaError
from storage.log import Recorded

_POSITION = 8
"""Bytes."""


def notification_bytes(recorded: Recorded) -> bytes:
    """As it is sent."""
    return recorded.position.to_bytes(_POSITION, "big") + recorded.data


def notified_event(run: str, sent: bytes) -> Recorded | None:
    """What was sent; None where it is no event of the run that this version can read: a look at the log will tell."""
    position, data = int.from_bytes(sent[:_POSITION], "big"), sent[_POSITION:]
    try:
        envelope = decode(data)
        return Recorded(position, envelope.subject, envelope, data) if envelope.run == run else None
    except SchemaError:
        return None
