"""`Order`: positions without holes, each event once under its subject, each cause before its effect."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tests.harness.history.finding import Finding, Kind
from tests.harness.history.record import Record


class Order:
    """Checks of positions, subjects, ids and causes. foreign: positions of records that are not events of the run."""

    def __init__(self, foreign: Collection[int] = ()) -> None:
        self._foreign = foreign
        self._next = 1
        self._positions: dict[tuple[str, str], int] = {}
        self._ids: set[str] = set()

    def position(self, position: int) -> Iterator[Finding]:
        """Look at a position before its record is read."""
        while self._next in self._foreign:
            self._next += 1
        if position != self._next:
            yield Finding(Kind.HOLE, position, f"position {self._next} was expected, {position} came")
        self._next = position + 1

    def apply(self, record: Record) -> Iterator[Finding]:
        """Look at a record."""
        if not record.subject.startswith(f"slime.{record.run}.{record.type}."):
            yield Finding(Kind.WRONG_SUBJECT, record.position, f"{record.type} has the subject {record.subject}")
        key = (record.subject, record.id)
        if key in self._positions:
            first = self._positions[key]
            yield Finding(Kind.REPEATED, record.position, f"{record.type} {record.id} is at position {first} already")
        self._positions.setdefault(key, record.position)
        if record.cause is not None and record.cause not in self._ids:
            yield Finding(Kind.NO_CAUSE, record.position, f"the cause {record.cause} of {record.type} is not before it")
        self._ids.add(record.id)
