"""`Check`: one promise about a log, looked at event by event; `Finding`: one thing in a log that must not be."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from schemas.event import Event
from slime_events.analysis.audit.ledger import Ledger
from storage.log import Recorded


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """check: which found it. position, event: of what it is about (0 and the run where it is about the whole log).

    wrong: what is there. means: what follows from it.
    """

    check: str
    position: int
    event: str
    wrong: str
    means: str

    def __str__(self) -> str:
        where = f"position {self.position}, {self.event}" if self.position else self.event
        return f"{where}: {self.wrong}, so {self.means}"


Counts = dict[str, Any]
"""What a check looked at, by name: numbers, words, and for histograms a dict of numbers."""


class Check:
    """name: one word. promise: what holds where it finds nothing. hears: the events that it is shown (empty: all).

    An event is shown to the checks before the ledger takes it in: `ledger` is what was said before it.
    """

    name: ClassVar[str]
    promise: ClassVar[str]
    hears: ClassVar[tuple[type[Event], ...]] = ()

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.findings: list[Finding] = []

    @property
    def applies(self) -> bool:
        """Whether it is of runs like this one, by what was said so far."""
        return True

    def apply(self, recorded: Recorded) -> None:
        """Look at one event."""
        raise NotImplementedError

    def finish(self) -> list[Finding]:
        """Everything found, once the last event was shown."""
        return self.findings

    def counts(self) -> Counts:
        """How much was looked at."""
        raise NotImplementedError

    def find(self, recorded: Recorded, wrong: str, means: str) -> None:
        """Note what is wrong with an event."""
        event = recorded.envelope.event
        about = f"{recorded.envelope.type} of {event.entity()}"
        self.findings.append(
            Finding(check=self.name, position=recorded.position, event=about, wrong=wrong, means=means)
        )
