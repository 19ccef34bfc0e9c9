"""Events as plain JSON values: arrays as type and length, or in full."""

import enum
from typing import Any

import msgspec

from schemas.arrays import Array, unpack
from storage.log import Recorded


def plain(value: Any, *, full: bool = False) -> Any:
    """Return a JSON value. Arrays become `{"dtype", "n"}`; with `full`, numbers, if the event itself holds them."""
    if isinstance(value, Array):
        if full and value.blob is None:
            return unpack(value).tolist()
        summary: dict[str, Any] = {"dtype": value.dtype, "n": value.n}
        return summary | ({"blob": value.blob.sha256} if value.blob else {})
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        fields = ((encoded, getattr(value, name)) for encoded, name in names)
        return {name: plain(field, full=full) for name, field in fields if field is not msgspec.UNSET}
    if isinstance(value, dict):
        return {str(key): plain(item, full=full) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, full=full) for item in value]
    return value


def picked(value: msgspec.Struct | None, *names: str) -> dict[str, Any]:
    """Return some fields as JSON values; all null if `value` is None."""
    return {name: None if value is None else plain(getattr(value, name)) for name in names}


def plain_event(recorded: Recorded, *, full: bool = False) -> dict[str, Any]:
    """Return a recorded event with its envelope as one JSON object."""
    envelope = recorded.envelope
    about = {"position": recorded.position, "subject": recorded.subject}
    about |= picked(envelope, "id", "at", "producer", "cause", "traceparent")
    return about | {"event": {"type": envelope.type, **plain(envelope.event, full=full)}}
