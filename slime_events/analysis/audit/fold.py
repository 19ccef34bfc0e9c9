"""The fold: does the log add up to the state that each live conductor ended with?"""

from __future__ import annotations

from schemas.runs import RunFinished
from slime_events.analysis.audit.check import Check, Counts
from slime_events.analysis.audit.ledger import Ledger
from slime_events.core.state.apply import apply
from slime_events.core.state.run import FOLD, RunState, state_digest
from storage.log import Recorded


class Fold(Check):
    """The state chains over all bytes of all events, so its digest is that of exactly this log."""

    name = "fold"
    promise = "the log folds to the digest that each end says"

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._state = RunState(run=ledger.run)
        self._broken = False
        self._compared = self._other = 0

    def apply(self, recorded: Recorded) -> None:
        if self._broken:
            return
        event = recorded.envelope.event
        if isinstance(event, RunFinished):
            self._compare(recorded, event)
        try:
            apply(self._state, recorded)
        except (KeyError, ValueError, IndexError) as error:
            self._broken = True
            wrong = f"it does not fit the events before it ({type(error).__name__}: {error})"
            self.find(recorded, wrong, "one of them is missing or was changed")

    def _compare(self, recorded: Recorded, event: RunFinished) -> None:
        if event.fold != FOLD:
            self._other += 1
            return
        self._compared += 1
        if state_digest(self._state) != event.state_digest:
            wrong = f"the {self._state.events} events before it fold to another state"
            self.find(recorded, wrong, "an event was changed, added or replaced since")

    def counts(self) -> Counts:
        return {"ends compared": self._compared, "ends of other fold rules": self._other}
