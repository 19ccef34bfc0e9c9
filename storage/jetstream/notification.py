"""Encode and decode the notification of a stored event: its position and its bytes."""

from schemas.codec import decode
from schemas.errors import SchemaError
from storage.log import Recorded

_POSITION = 8
"""Bytes of the position."""


def notification_bytes(recorded: Recorded) -> bytes:
    return recorded.position.to_bytes(_POSITION, "big") + recorded.data


def notified_event(run: str, sent: bytes) -> Recorded | None:
    """Return the event of a notification, or None if it is not an event of the run that this version can read."""
    position, data = int.from_bytes(sent[:_POSITION], "big"), sent[_POSITION:]
    try:
        envelope = decode(data)
        return Recorded(position, envelope.subject, envelope, data) if envelope.run == run else None
    except SchemaError:
        return None
