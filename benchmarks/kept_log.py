"""The made log of `benchmarks/long_log.py` where a run's log is kept: on a server, and in an archive."""

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
    """In segments of the usual size, under `url`/long, closed; or up to a position, and open."""
    writer = ArchiveWriter(url, RUN)
    for position, append in enumerate(islice(_said(steps, settings), up_to), 1):
        writer.add(Recorded(position, append.envelope.subject, append.envelope, append.encoded()))
        if writer.pending_bytes >= SEGMENT_BYTES:
            writer.seal()
    if up_to is None:
        writer.close()
    else:
        writer.seal()


async def fill_log(log: EventLog, steps: int, settings: Settings = None) -> None:
    """As many in a call as it takes."""
    said = _said(steps, settings)
    while batch := list(islice(said, MAX_BATCH)):
        await log.append(batch)


def _said(steps: int, settings: Settings) -> Iterator[Append]:
    """A microsecond apart."""
    for number, event in enumerate(long_log(steps, settings)):
        yield Append(enclose(RUN, event, at=number * 1000, producer="bench"))
