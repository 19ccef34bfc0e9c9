"""The made log of `benchmarks/long_log.py` where a run's log is kept: on a server, and in an archive."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from benchmarks.long_log import long_log
from schemas.envelope import enclose
from storage.archive.writer import SEGMENT_BYTES, ArchiveWriter
from storage.log import MAX_BATCH, Append, EventLog, Recorded

RUN = "long"


def fill_archive(url: str, steps: int) -> None:
    """In segments of the usual size, under `url`/long."""
    writer = ArchiveWriter(url, RUN)
    for position, append in enumerate(_said(steps), 1):
        writer.add(Recorded(position, append.envelope.subject, append.envelope, append.encoded()))
        if writer.pending_bytes >= SEGMENT_BYTES:
            writer.seal()
    writer.close()


async def fill_log(log: EventLog, steps: int) -> None:
    """As many in a call as it takes."""
    said = _said(steps)
    while batch := list(islice(said, MAX_BATCH)):
        await log.append(batch)


def _said(steps: int) -> Iterator[Append]:
    """A microsecond apart."""
    for number, event in enumerate(long_log(steps)):
        yield Append(enclose(RUN, event, at=number * 1000, producer="bench"))
