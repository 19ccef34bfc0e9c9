"""`RowBuilder`: rows of several event tables from one reading of the log, in batches."""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from itertools import chain
from operator import attrgetter

import pyarrow as pa

from schemas.event import Event
from schemas.registry import BY_TYPE
from slime_events.analysis.query.event_tables import EventTable
from slime_events.analysis.query.row import Row
from slime_events.core.tokens.trajectory import Fetch

BATCH = 8192
"""Events per batch."""
BATCH_BYTES = 32 * 1024 * 1024
"""Bytes of records per batch: long rollouts come in smaller batches."""
BLOCK = 256
"""Events whose values are read together: few enough for them to stay in the processor's cache until then."""

Write = Callable[[EventTable, pa.RecordBatch], None]


class RowBuilder:
    """Pass the rows of `tables` to `write`, in batches and in order."""

    def __init__(self, tables: Collection[EventTable], fetch: Fetch, write: Write) -> None:
        self._tables = [(table, [BY_TYPE[kind] for kind in sorted(table.types)]) for table in tables]
        self._fetch, self._write = fetch, write
        self.types = frozenset().union(*(table.types for table in tables))
        """Types of events that have rows."""
        self._waiting: list[Row] = []
        self._values = defaultdict[str, list[list[object]]](list)
        self._events, self._bytes = 0, 0

    @property
    def full(self) -> bool:
        """Whether `flush` is due."""
        return self._events >= BATCH or self._bytes >= BATCH_BYTES

    def add(self, rows: Sequence[Row]) -> None:
        """Add events of `types`. Flush if `full`. A reader of many adds `BLOCK` at a time."""
        self._waiting += rows
        self._events += len(rows)
        self._bytes += sum([len(row.data) for row in rows])
        if len(self._waiting) >= BLOCK:
            self._read_values()

    def flush(self) -> None:
        """Write the rows of all added events. Raises the errors of `fetch`."""
        self._read_values()
        for table, _ in self._tables:
            if values := self._values.pop(table.name, None):
                self._write(table, table.packed(values, self._fetch))
        self._events, self._bytes = 0, 0

    def _read_values(self) -> None:
        """Read the values of the waiting events, which are then no longer in memory."""
        of_class = defaultdict[type[Event], list[Row]](list)
        for row in self._waiting:
            of_class[row.envelope.event.__class__].append(row)
        for table, classes in self._tables:
            parts = [of_class[event] for event in classes if event in of_class]
            if not parts:
                continue
            rows = parts[0] if len(parts) == 1 else sorted(chain.from_iterable(parts), key=attrgetter("position"))
            columns, together = table.values(rows), self._values[table.name]
            if not together:
                together += ([] for _ in columns)
            for values, more in zip(together, columns, strict=True):
                values += more
        self._waiting = []
