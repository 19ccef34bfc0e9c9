"""Archive: do the segments that were sealed cover the log without a gap?"""

from __future__ import annotations

from schemas.archives import ArchiveSealed
from slime_events.analysis.audit.check import Check, Counts
from slime_events.analysis.audit.ledger import Ledger
from storage.log import Recorded


class Archive(Check):
    """What the log says of its own copies; the copies themselves are verified by whoever reads them."""

    name = "archive"
    promise = "sealed segments join, each sealed after all that it holds"
    hears = (ArchiveSealed,)

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._segments = 0
        self._last: ArchiveSealed | None = None

    def apply(self, recorded: Recorded) -> None:
        event, before = recorded.envelope.event, self._last
        assert isinstance(event, ArchiveSealed)
        self._segments, self._last = self._segments + 1, event
        if event.last >= recorded.position or event.first > event.last:
            wrong = f"it holds positions {event.first} to {event.last}"
            self.find(recorded, wrong, "it cannot be a copy of what was said before it")
        expected = 1 if event.segment == 1 else before.last + 1 if before and _follows(before, event) else event.first
        if event.first != expected:
            wrong = f"it begins at position {event.first}, and the segments before it end at {expected - 1}"
            self.find(recorded, wrong, "the archive alone cannot restore the log")

    def counts(self) -> Counts:
        return {"segments": self._segments, "positions": self._last.last if self._last else 0}


def _follows(before: ArchiveSealed, event: ArchiveSealed) -> bool:
    """Whether it is the next segment of the same archive: a run that was restored may go on with another one."""
    same = event.url.rpartition("/")[0] == before.url.rpartition("/")[0]
    return same and event.segment == before.segment + 1
