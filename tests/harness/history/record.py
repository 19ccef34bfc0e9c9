"""`Record`: a raw record as plain values, by the names that docs/events.md documents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

Raw = tuple[int, str, bytes]
"""(position, subject, the stored bytes)."""

Blob = Callable[[str], bytes]
"""A payload by its sha256."""


@dataclass(frozen=True, slots=True)
class Record:
    """type: e.g. `rollout.completed`. event: its fields; those at their default may be absent."""

    position: int
    subject: str
    id: str
    run: str
    type: str
    cause: str | None
    event: dict[str, Any]


def read_record(raw: Raw) -> Record:
    """The record's parts. Raises ValueError where the bytes are not an envelope around an event."""
    position, subject, data = raw
    try:
        wire = msgspec.msgpack.decode(data)
        event = wire["event"]
        return Record(position, subject, wire["id"], wire["run"], event["type"], wire.get("cause"), event)
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise ValueError(f"not an envelope around an event: {error!r}") from error


def array_bytes(array: dict[str, Any] | None, blob: Blob | None) -> bytes | None:
    """The numbers' bytes; None where they lie in a blob that nobody can fetch."""
    if array is None:
        return b""
    reference = array.get("blob")
    if reference is None:
        return bytes(array.get("data", b""))
    return None if blob is None else blob(reference["sha256"])
