"""`Foreign`: a record that is no event of its run, as it is named to people."""

from collections import deque

import msgspec

from slime_events.core.state.run import RunState
from storage.log import ForeignRecord, Readable

BEGINS = 16
"""Bytes of it that are shown."""
LAST, LOOKED_AT = 10, 20_000
"""Of a run: how many are named, among how many of its last records."""


class Foreign(msgspec.Struct, frozen=True):
    """size: in bytes; begins: its first ones, as Python writes them. why: in words."""

    position: int
    subject: str
    size: int
    begins: str
    why: str

    def __str__(self) -> str:
        begins = f", which begin {self.begins}" if self.size > BEGINS else f": {self.begins}" if self.size else ""
        return f"position {self.position}, {self.subject}: {self.why}; {self.size:,} bytes{begins}"


class ForeignFound(msgspec.Struct, frozen=True):
    """count: in the whole log. last: the newest of them, where they are near its end."""

    count: int
    last: tuple[Foreign, ...] = ()


NO_FOREIGN = ForeignFound(0)


def named(record: ForeignRecord) -> Foreign:
    """Without its bytes, of which there may be many."""
    begins = repr(record.data[:BEGINS])
    return Foreign(record.position, record.subject, len(record.data), begins, record.reason.value)


async def foreign_in(log: Readable, state: RunState) -> ForeignFound:
    """state: at the log's end, or shortly before. Reads nothing where the log has no foreign record."""
    end = await log.end()
    if end == state.events:
        return NO_FOREIGN
    last, later = deque[Foreign](maxlen=LAST), 0
    start = min(end - LOOKED_AT, state.position + 1) if state.foreign else state.position + 1
    async for record in log.read_records(max(1, start)):
        if isinstance(record, ForeignRecord):
            last.append(named(record))
            later += record.position > state.position
    return ForeignFound(state.foreign + later, tuple(last))
