"""`FactBuilder`: events in, columns out, never more than a batch of events in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pyarrow as pa

from slime_events.analysis.query.facts import Fact
from slime_events.core.trajectory import Fetch
from storage.log import Recorded

BATCH = 8192
"""Events that become columns at once."""
BATCH_BYTES = 32 * 1024 * 1024
"""Of their records: long rollouts come in smaller batches."""

Write = Callable[[Fact, pa.RecordBatch], None]


class FactBuilder:
    """Hands the rows of `facts` to `write`, a batch at a time and in order."""

    def __init__(self, facts: Collection[Fact], fetch: Fetch, write: Write) -> None:
        self._facts, self._fetch, self._write = facts, fetch, write
        self.types = frozenset().union(*(fact.types for fact in facts))
        """The events that matter."""
        self._waiting: list[Recorded] = []
        self._bytes = 0

    @property
    def full(self) -> bool:
        """Whether it is time to flush."""
        return len(self._waiting) >= BATCH or self._bytes >= BATCH_BYTES

    def add(self, recorded: Recorded) -> None:
        """One more event. Flush when full."""
        self._waiting.append(recorded)
        self._bytes += len(recorded.data)

    def flush(self) -> None:
        """Make rows of all that waits."""
        for fact in self._facts:
            batch = fact.batch([one for one in self._waiting if one.envelope.type in fact.types], self._fetch)
            if batch.num_rows:
                self._write(fact, batch)
        self._waiting, self._bytes = [], 0


def type_in(subject: str) -> str:
    """The event's type, by its subject alone."""
    _, _, noun, verb, _ = subject.split(".", 4)
    return f"{noun}.{verb}"
