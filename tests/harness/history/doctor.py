"""`Doctored`: a log with something changed in it, as no correct run would have written it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from tests.harness.history.record import Raw

Wire = dict[str, Any]


class Doctored:
    """Records as plain maps that may be changed, taken out, doubled or moved; `records` gives them new positions."""

    def __init__(self, records: Iterable[Raw]) -> None:
        self.wires: list[Wire] = []
        self._subjects: list[str] = []
        for _, subject, data in records:
            self.wires.append(msgspec.msgpack.decode(data))
            self._subjects.append(subject)

    def places(self, kind: str, where: Callable[[dict[str, Any]], bool] = lambda event: True) -> list[int]:
        """Return the indices of the records of a type, from 0."""
        return [
            place for place, wire in enumerate(self.wires) if wire["event"]["type"] == kind and where(wire["event"])
        ]

    def event(self, kind: str, which: int = 0) -> dict[str, Any]:
        """The event of one of them, to be changed."""
        return self.wires[self.places(kind)[which]]["event"]

    def drop(self, place: int) -> None:
        """Take one out; those after it move up."""
        del self.wires[place], self._subjects[place]

    def move(self, place: int, to: int) -> None:
        """Take one out and put it elsewhere."""
        wire, subject = self.wires.pop(place), self._subjects.pop(place)
        self.wires.insert(to, wire)
        self._subjects.insert(to, subject)

    def repeat(self, place: int, to: int | None = None, **changes: Any) -> None:
        """Say it again under another id, by default at the end, with other fields."""
        wire = self.wires[place] | {"id": self.wires[place]["id"] + "'", "event": self.wires[place]["event"] | changes}
        at = len(self.wires) if to is None else to
        self.wires.insert(at, wire)
        self._subjects.insert(at, self._subjects[place])

    def readdress(self, place: int, subject: str) -> None:
        """Put one under another subject."""
        self._subjects[place] = subject

    def records(self) -> Iterator[Raw]:
        """Yield the records as a log returns them."""
        for position, (wire, subject) in enumerate(zip(self.wires, self._subjects, strict=True), 1):
            yield position, subject, msgspec.msgpack.encode(wire)
