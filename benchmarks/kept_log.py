"""Write the generated log of `benchmarks/long_log.py` to a server or an archive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from benchmarks.long_log import long_log
from schemas.envelope import enclose
from storage.archive.writer import SEGMENT_BYTES, ArchiveWriter
from storage.log import MAX_BATCH, Append, EventLog, Recorded

RUN = "long"


Settings = Mapping[str, Any] | None


def fill_archive(url: str, steps: int, settings: Settings = None, *, up_to: int | None = None) -> None:
    """Write an archive to `url`/long in segments of the usual size: closed, or open up to a position."""
    writer = ArchiveWriter(url, RUN)
    for position, append in enumerate(islice(_appends(steps, settings), up_to), 1):
        writer.add(Recorded(position, append.envelope.subject, append.envelope, append.encoded()))
        if writer.pending_bytes >= SEGMENT_BYTES:
            writer.seal()
    if up_to is None:
        writer.close()
    else:
        writer.seal()


async def fill_log(log: EventLog, steps: int, settings: Settings = None) -> None:
    """Append to a log in the largest batches."""
    appends = _appends(steps, settings)
    while batch := list(islice(appends, MAX_BATCH)):
        await log.append(batch)


def _appends(steps: int, settings: Settings) -> Iterator[Append]:
    """Yield the events with times a microsecond apart."""
    for number, event in enumerate(long_log(steps, settings)):
        yield Append(enclose(RUN, event, at=number * 1000, producer="bench"))
