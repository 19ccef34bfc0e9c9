"""Positions, subjects, ids and causes: is every record where and what it says it is?"""

from __future__ import annotations

from schemas.envelope import event_id
from slime_events.analysis.audit.check import Check, Counts
from slime_events.analysis.audit.ledger import Ledger
from storage.log import Recorded


class Positions(Check):
    """Holds for every event, whatever its type."""

    name = "positions"
    promise = "no hole, every id once and its event's own, every cause before its effect"

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._by_id: dict[str, int] = {}
        self._events = self._causes = 0

    def apply(self, recorded: Recorded) -> None:
        self._events += 1
        expected = self.ledger.position + 1
        if recorded.position > expected:
            last = recorded.position - 1
            gone = f"position {last} is" if last == expected else f"positions {expected} to {last} are"
            self.find(recorded, f"{gone} missing before it", "something was taken out of the log")
        elif recorded.position < expected:
            self.find(recorded, f"it comes after position {self.ledger.position}", "the log was put in another order")
        envelope = recorded.envelope
        if recorded.subject != envelope.subject or envelope.run != self.ledger.run:
            wrong = f"it lies on {recorded.subject} and says {envelope.subject}"
            self.find(recorded, wrong, "it was moved there from elsewhere, and fences did not see it")
        if event_id(envelope.run, envelope.event) != envelope.id:
            self.find(recorded, "its id is not that of what it says", "it was changed after it was written")
        first = self._by_id.setdefault(envelope.id, recorded.position)
        if first != recorded.position:
            self.find(recorded, f"it was said at position {first} already", "one event is stored twice")
        if envelope.cause is not None:
            self._causes += 1
            if envelope.cause not in self._by_id:
                wrong = f"its cause {envelope.cause} is not in the log before it"
                self.find(recorded, wrong, "what led to it is missing or comes later")

    def counts(self) -> Counts:
        return {"events": self._events, "causes": self._causes}
