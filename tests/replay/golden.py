"""The golden logs of decisions, and copies of them that somebody has changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from schemas.codec import decode, encode
from schemas.event import Event
from storage.log import Recorded
from tests.golden.log_file import FOLDER, read_records

LOGS = sorted((FOLDER / "decisions").glob("*.slimelog"))


def golden(name: str) -> list[Recorded]:
    """The newest one of a mode."""
    return recorded_of([path for path in LOGS if path.stem.endswith(name)][-1])


def recorded_of(path: Path) -> list[Recorded]:
    """The records of a golden log, as a log gives them."""
    records = []
    for position, data in enumerate(read_records(path), 1):
        envelope = decode(data)
        records.append(Recorded(position, envelope.subject, envelope, data))
    return records


def changed(
    records: list[Recorded], kind: type[Event], change: Callable[[Event], dict[str, object]], *, nth: int = 0
) -> tuple[list[Recorded], int]:
    """Return the same log with other fields in the nth event of a kind, and its position."""
    place = [i for i, record in enumerate(records) if isinstance(record.envelope.event, kind)][nth]
    before = records[place]
    event = msgspec.structs.replace(before.envelope.event, **change(before.envelope.event))
    envelope = msgspec.structs.replace(before.envelope, event=event)
    after = Recorded(before.position, before.subject, envelope, encode(envelope))
    return [*records[:place], after, *records[place + 1 :]], before.position
