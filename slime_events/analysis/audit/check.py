"""`Check`: one promise about a log, looked at event by event; `Finding`: one thing in a log that must not be."""

from typing import Any, ClassVar

import msgspec

from schemas.event import Event, type_of
from schemas.registry import EVENT_CLASSES
from slime_events.analysis.audit.ledger import Ledger
from storage.log import Recorded

Counts = dict[str, Any]
"""What a check looked at, by name: numbers, words, and for histograms a dict of numbers."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """check: which found it. position, event: of what it is about. wrong: what is there. means: what follows."""

    check: str
    position: int
    event: str
    wrong: str
    means: str

    def __str__(self) -> str:
        return f"position {self.position}, {self.event}: {self.wrong}, so {self.means}"


class Check:
    """name: one word. promise: what holds where it finds nothing. handlers: by type of event, what looks at it: the
    method of its name, such as `_on_batch_sealed`.

    An event is shown to the checks before the ledger takes it in: `ledger` holds what stands before it in the log.
    recorded: what is looked at.
    """

    name: ClassVar[str]
    promise: ClassVar[str]
    of_own_rollouts: ClassVar[bool | None] = None
    """True: it is skipped for a learner, whose rollouts are another run's. False: it is for learners alone."""
    counted: ClassVar[tuple[str, ...]] = ()
    """What it counts in `seen`."""
    recorded: Recorded

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        named = {kind: f"_on_{type_of(kind).replace('.', '_')}" for kind in EVENT_CLASSES}
        self.handlers = {kind: getattr(self, name) for kind, name in named.items() if hasattr(self, name)}
        self.findings: list[Finding] = []
        self.seen: Counts = dict.fromkeys(self.counted, 0)

    def hears(self, kind: type[Event]) -> bool:
        """Whether it looks at events of this type; without handlers it looks at every event."""
        return not self.handlers or kind in self.handlers

    @property
    def applies(self) -> bool:
        """Whether it applies to a run like this one, by the log so far."""
        return self.of_own_rollouts is None or self.of_own_rollouts != self.ledger.follows

    def apply(self, event: Event) -> None:
        """Look at the event of `recorded`."""
        self.handlers[type(event)](event)

    def finish(self) -> list[Finding]:
        """All findings, after the last event."""
        return self.findings

    def counts(self) -> Counts:
        """How much was looked at."""
        return self.seen

    def find(self, wrong: str, means: str) -> None:
        """Note what is wrong with the event of `recorded`."""
        envelope, position = self.recorded.envelope, self.recorded.position
        about = f"{envelope.type} of {envelope.event.entity()}"
        self.findings.append(Finding(check=self.name, position=position, event=about, wrong=wrong, means=means))
