"""Logs that hold given events."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from schemas.codec import encode
from schemas.envelope import enclose
from schemas.event import Event
from storage.archive.writer import ArchiveWriter
from storage.log import Append, EventLog, Recorded, append_all
from storage.memory_log import MemoryLog


async def say(log: EventLog, *events: Event, at: int = 0, apart: int = 1) -> list[int]:
    """Append events to a log, the first with time `at`, the others `apart` nanoseconds apart; return the positions."""
    envelopes = [enclose(log.run, event, at=at + n * apart, producer="test") for n, event in enumerate(events)]
    return await append_all(log, [Append(envelope) for envelope in envelopes])


async def log(*events: Event, run: str = "r", at: int = 0, apart: int = 1) -> MemoryLog:
    """Return a log with these events."""
    memory = MemoryLog(run)
    await say(memory, *events, at=at, apart=apart)
    return memory


def recorded(*events: Event, run: str = "r", at: int = 0, apart: int = 1, first: int = 1) -> list[Recorded]:
    """Return the events as a log holds them, the first at position `first`."""
    envelopes = [enclose(run, event, at=at + n * apart, producer="test") for n, event in enumerate(events)]
    return [Recorded(first + n, item.subject, item, encode(item)) for n, item in enumerate(envelopes)]


def archived(
    folder: Path | str, records: Sequence[Recorded], *, run: str = "", per_segment: int = 0, closed: bool = True
) -> str:
    """Archive the records of one run in the folder; return the URL of the run's archive.

    The archive has the name of the run unless `run` is set. All records are in one segment unless `per_segment` is
    set. An archive that is not closed may be continued.
    """
    run = run or records[0].envelope.run
    writer = ArchiveWriter(str(folder), run)
    for count, record in enumerate(records, 1):
        writer.add(record)
        if per_segment and count % per_segment == 0:
            writer.seal()
    if closed:
        writer.close()
    else:
        writer.seal()
    return f"{folder}/{run}"
