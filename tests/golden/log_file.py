"""The golden file's form: a first line, then each record with its length before it (4 bytes, big-endian)."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from schemas.codec import decode
from schemas.envelope import Envelope

FIRST_LINE = b"slimelog 1\n"
FOLDER = Path(__file__).parent


def write_records(path: Path, records: Iterable[bytes]) -> None:
    """Write a new file. Raises FileExistsError if there is one."""
    with path.open("xb") as file:
        file.write(FIRST_LINE)
        for record in records:
            file.write(struct.pack(">I", len(record)) + record)


def read_records(path: Path) -> Iterator[bytes]:
    """The records in order."""
    data = path.read_bytes()
    assert data.startswith(FIRST_LINE), path
    at = len(FIRST_LINE)
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        yield data[at + 4 : at + 4 + size]
        at += 4 + size


def rendered(envelope: Envelope) -> dict[str, Any]:
    """Return a record as plain JSON values: what this version of the code understands of it, without defaults."""
    return {
        "subject": envelope.subject,
        "id": envelope.id,
        "at": envelope.at,
        "producer": envelope.producer,
        "cause": envelope.cause,
        "traceparent": envelope.traceparent,
        "event": json.loads(msgspec.json.encode(envelope.event)),
    }


def rendered_file(path: Path) -> list[dict[str, Any]]:
    """Every record of a golden file."""
    return [rendered(decode(record)) for record in read_records(path)]
