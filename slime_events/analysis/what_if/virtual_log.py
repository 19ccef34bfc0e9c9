"""`VirtualLog`: the events of a simulated run, and the state that the conductor decides by."""

from __future__ import annotations

from schemas.envelope import enclose
from schemas.event import Event
from slime_events.analysis.what_if.clock import Clock
from slime_events.core.state.apply import apply
from slime_events.core.state.run import RunState
from slime_events.model import Run
from storage.log import Recorded

BEGIN = 1
"""Time of virtual second 0 [ns]; 0 means that there is no time."""


class VirtualLog:
    """A log in memory, with the state and the records that are folded from it."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.state, self.run, self._clock = RunState(run=name), Run(name), clock
        self.events: list[Recorded] = []

    def append(self, event: Event, producer: str) -> None:
        """Append an event at the present virtual time."""
        envelope = enclose(self.run.run, event, at=BEGIN + round(self._clock.now * 1e9), producer=producer)
        recorded = Recorded(self.run.events + 1, envelope.subject, envelope, b"")
        self.events.append(recorded)
        apply(self.state, recorded)
        self.run.apply(recorded)
