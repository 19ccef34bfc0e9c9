"""`Foreign`: a record in a run's log that is not an event of the run, in a readable form."""

from collections import deque
from typing import Annotated

import msgspec

from schemas.doc import doc
from slime_events.core.state.run import RunState
from storage.log import ForeignRecord, Readable

SHOWN_BYTES = 16
"""First bytes of a record that are shown."""
LISTED, SEARCHED = 10, 20_000
"""Number of foreign records listed for a run, and of its last records that are searched for them."""


class Foreign(msgspec.Struct, frozen=True):
    """A foreign record."""

    position: Annotated[int, doc("position in the log")]
    subject: Annotated[str, doc("subject that it was published to")]
    size: Annotated[int, doc("[bytes]")]
    begins: Annotated[str, doc("its first bytes, as Python writes them")]
    why: Annotated[str, doc("why it is not an event, one sentence")]

    def __str__(self) -> str:
        begins = f", which begin {self.begins}" if self.size > SHOWN_BYTES else f": {self.begins}" if self.size else ""
        return f"position {self.position}, {self.subject}: {self.why}; {self.size:,} bytes{begins}"


class ForeignRecords(msgspec.Struct, frozen=True):
    """Foreign records of a log."""

    count: Annotated[int, doc("number in the whole log")]
    last: Annotated[tuple[Foreign, ...], doc("the newest near its end")] = ()


NO_FOREIGN = ForeignRecords(0)


def describe(record: ForeignRecord) -> Foreign:
    """Return a record as it is shown: without its bytes, which may be many."""
    begins = repr(record.data[:SHOWN_BYTES])
    return Foreign(record.position, record.subject, len(record.data), begins, record.reason.value)


async def read_foreign(log: Readable, state: RunState) -> ForeignRecords:
    """Find foreign records. Reads nothing if the log has none. state: at the log's end, or shortly before."""
    end = await log.end()
    if end == state.events:
        return NO_FOREIGN
    last, later = deque[Foreign](maxlen=LISTED), 0
    start = min(end - SEARCHED, state.position + 1) if state.foreign else state.position + 1
    async for record in log.read_records(max(1, start)):
        if isinstance(record, ForeignRecord):
            last.append(describe(record))
            later += record.position > state.position
    return ForeignRecords(state.foreign + later, tuple(last))
