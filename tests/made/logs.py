"""Logs that hold given events."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from schemas.codec import encode
from schemas.envelope import enclose
from schemas.event import Event
from storage.archive.writer import ArchiveWriter
from storage.log import Append, Recorded, append_all
from storage.memory_log import MemoryLog


async def log(*events: Event, run: str = "r", at: int | None = None) -> MemoryLog:
    """Return a log with the events. Each has the time `at` in nanoseconds, by default its index among the events."""
    memory = MemoryLog(run)
    await append_all(
        memory,
        [
            Append(enclose(run, event, at=number if at is None else at, producer="test"))
            for number, event in enumerate(events)
        ],
    )
    return memory


def recorded(*events: Event, run: str = "r", at: int = 0, apart: int = 0, first: int = 1) -> list[Recorded]:
    """Return the events as a log holds them, from position `first` and time `at` on, `apart` nanoseconds apart."""
    envelopes = [enclose(run, event, at=at + n * apart, producer="test") for n, event in enumerate(events)]
    return [Recorded(first + n, item.subject, item, encode(item)) for n, item in enumerate(envelopes)]


def archived(folder: Path | str, records: Iterable[Recorded], *, per_segment: int = 0, closed: bool = False) -> str:
    """Archive the records of one run in the folder; return the URL of the run's archive."""
    run, writer = "", None
    for count, record in enumerate(records, 1):
        if writer is None:
            run = record.envelope.run
            writer = ArchiveWriter(str(folder), run)
        writer.add(record)
        if per_segment and count % per_segment == 0:
            writer.seal()
    assert writer is not None, "there is nothing to archive"
    if closed:
        writer.close()
    else:
        writer.seal()
    return f"{folder}/{run}"
