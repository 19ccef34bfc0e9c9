"""`Doctored`: a log that somebody has worked on, record by record, as no writer could through an `EventLog`."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from schemas.codec import decode, encode
from schemas.envelope import enclose
from schemas.event import Event
from slime_events.analysis.audit.audit import Audit, audit
from slime_events.analysis.audit.report import Report
from storage.log import Recorded


@dataclass
class Record:
    """One record, open to change. written: as it was."""

    position: int
    subject: str
    written: Recorded

    @cached_property
    def body(self) -> dict[str, Any]:
        """The decoded MessagePack map, its event under `event`."""
        return msgspec.msgpack.decode(self.written.data)

    @property
    def event(self) -> dict[str, Any]:
        return self.body["event"]

    @property
    def type(self) -> str:
        return str(self.event["type"]) if self._is_open else self.written.envelope.type

    @property
    def recorded(self) -> Recorded:
        """Return the record as a log would. An unchanged record keeps its bytes: other records may share its map."""
        if self._is_open and self.body != msgspec.msgpack.decode(self.written.data):
            data = msgspec.msgpack.encode(self.body)
            return Recorded(self.position, self.subject, decode(data), data)
        return Recorded(self.position, self.subject, self.written.envelope, self.written.data)

    @property
    def _is_open(self) -> bool:
        return "body" in self.__dict__


@dataclass
class Doctored:
    """The records of a log."""

    run: str
    records: list[Record] = field(default_factory=list)

    @classmethod
    def of(cls, run: str, recorded: list[Recorded]) -> Doctored:
        """A copy to work on."""
        return cls(run, [Record(item.position, item.subject, item) for item in recorded])

    def find(self, kind: str, *, where: Callable[[dict[str, Any]], bool] = lambda event: True, nth: int = 0) -> Record:
        """The nth record of a type whose event is like that."""
        return [record for record in self.records if record.type == kind and where(record.event)][nth]

    def place(self, record: Record) -> int:
        """Return its index, from 0."""
        return next(place for place, each in enumerate(self.records) if each is record)

    def delete(self, *records: Record) -> None:
        """Take records out; the others keep their positions."""
        self.records = [each for each in self.records if all(each is not gone for gone in records)]

    def insert(self, record: Record, after: Record) -> Record:
        """Put a copy of a record behind another, to be changed."""
        copied = copy.deepcopy(record)
        self.records.insert(self.place(after) + 1, copied)
        return copied

    def say(self, event: Event, after: Record) -> Record:
        """Put an event that nobody said behind a record."""
        envelope = enclose(self.run, event, at=after.body["at"], producer="nobody")
        recorded = Recorded(after.position, envelope.subject, envelope, encode(envelope))
        record = Record(recorded.position, recorded.subject, recorded)
        self.records.insert(self.place(after) + 1, record)
        return record

    def move(self, record: Record, before: Record) -> None:
        """Put a record in front of another."""
        self.delete(record)
        self.records.insert(self.place(before), record)

    def renumber(self) -> None:
        """Give all records positions 1, 2, 3, ..., as a careful forger would."""
        for position, record in enumerate(self.records, 1):
            record.position = position

    def recorded(self) -> Iterator[Recorded]:
        """Return the records as a log would."""
        for record in self.records:
            yield record.recorded

    async def audit(self, auditor: Audit) -> Report:
        """Audit the log and return the report."""

        async def read() -> AsyncIterator[Recorded]:
            for recorded in self.recorded():
                yield recorded

        return await audit(read(), auditor)
