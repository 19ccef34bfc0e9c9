"""`Check`: one promise about a log, checked event by event."""

from typing import ClassVar

from schemas.event import Event, type_of
from schemas.registry import EVENT_CLASSES
from slime_events.analysis.audit.ledger import Ledger
from slime_events.analysis.audit.report import Counts, Finding
from storage.log import Recorded


class Check:
    """One promise about a log.

    An event is shown to the checks before the ledger takes it in: `ledger` holds the log before the event. handlers: by
    type of event, the method of that name, such as `_on_batch_sealed`.
    """

    name: ClassVar[str]
    """One word."""
    promise: ClassVar[str]
    """What holds if there are no findings."""
    of_own_rollouts: ClassVar[bool | None] = None
    """True: skipped for a learner, whose rollouts belong to another run. False: for learners alone."""
    only_if_seen: ClassVar[bool] = False
    """True: reported only if it has counted something or has findings."""
    counted: ClassVar[tuple[str, ...]] = ()
    """Names that `seen` counts from the beginning."""
    recorded: Recorded
    """The event that is being checked."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        methods = {kind: f"_on_{type_of(kind).replace('.', '_')}" for kind in EVENT_CLASSES}
        self.handlers = {kind: getattr(self, name) for kind, name in methods.items() if hasattr(self, name)}
        self.findings: list[Finding] = []
        self.seen: Counts = dict.fromkeys(self.counted, 0)

    def handles(self, kind: type[Event]) -> bool:
        """Return whether the check handles events of this type. Without handlers it handles every event."""
        return not self.handlers or kind in self.handlers

    @property
    def applies(self) -> bool:
        """Whether the check applies to a run like this one, by the log so far."""
        return self.of_own_rollouts is None or self.of_own_rollouts != self.ledger.follows

    @property
    def is_reported(self) -> bool:
        """Whether the report has the check."""
        return self.applies and (not self.only_if_seen or bool(self.seen or self.findings))

    def apply(self, event: Event) -> None:
        self.handlers[type(event)](event)

    def finish(self) -> list[Finding]:
        """Return all findings, after the last event."""
        return self.findings

    def counts(self) -> Counts:
        """Return the amounts that were looked at."""
        return self.seen

    def find(self, wrong: str, means: str) -> None:
        """Record a violation by the event of `recorded`. means: continues ", so"."""
        envelope, position = self.recorded.envelope, self.recorded.position
        about = f"{envelope.type} of {envelope.event.entity()}"
        self.findings.append(Finding.of(self.name, position, about, wrong, means))
