"""The run's beginning, its ends and its resumptions."""

from __future__ import annotations

from schemas.batches import BatchSealed
from schemas.evals import EvalCompleted
from schemas.groups import GroupAccepted, GroupRejected
from schemas.rollouts import RolloutRequested
from schemas.runs import FinishReason, RunFailed, RunFinished, RunResumed, RunStarted
from slime_events.analysis.audit.check import Check, Counts
from slime_events.analysis.audit.ledger import Ledger
from storage.log import Recorded

DECISIONS = (RolloutRequested, GroupAccepted, GroupRejected, BatchSealed, EvalCompleted, RunFinished)
"""What nobody may say after the end. Work that was under way then (a chunk, a reward, an upload) may still arrive: it
is acked and counts when the run is resumed."""


class Lifetime(Check):
    """A run begins once, ends, and goes on only after it was resumed."""

    name = "lifetime"
    promise = "run.started first, no decision after an end that was not resumed"

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._resumed = self._late = 0
        self._ended_as = "running"

    def apply(self, recorded: Recorded) -> None:
        event, ledger = recorded.envelope.event, self.ledger
        if isinstance(event, RunStarted) == bool(ledger.position):
            wrong = "the run had begun before" if ledger.position else "the log does not begin with run.started"
            self.find(recorded, wrong, "this is not one run's whole log")
        if ledger.ended and not isinstance(event, RunResumed):
            self._late += 1
            if isinstance(event, DECISIONS):
                wrong = f"the run had ended at position {ledger.ended} and was not resumed"
                self.find(recorded, wrong, "a process that should have ended still decides")
        if isinstance(event, RunResumed):
            self._resume(recorded, event)
        elif isinstance(event, RunFinished):
            self._finish(recorded, event)
        elif isinstance(event, RunFailed):
            self._ended_as = "failed"

    def _resume(self, recorded: Recorded, event: RunResumed) -> None:
        self._resumed += 1
        self._ended_as = "running"
        if event.incarnation != self.ledger.incarnation + 1:
            wrong = f"it is incarnation {event.incarnation} after {self.ledger.incarnation}"
            self.find(recorded, wrong, "a resumption is missing, or two went on at once")

    def _finish(self, recorded: Recorded, event: RunFinished) -> None:
        self._ended_as = f"finished ({event.reason.value})"
        if event.events != self.ledger.position:
            wrong = f"it was said after {event.events} events and stands after {self.ledger.position}"
            self.find(recorded, wrong, "events before it were added or taken out")
        if event.steps != self.ledger.steps_committed:
            wrong = f"it counts {event.steps} steps, and {self.ledger.steps_committed} are committed"
            self.find(recorded, wrong, "a step is missing or was added")
        plan = self.ledger.rules.plan
        if event.reason is FinishReason.ALL_STEPS and plan is not None and event.steps < plan.steps:
            wrong = f"it says all steps, and {event.steps} of {plan.steps} are committed"
            self.find(recorded, wrong, "the run ended before it was done")

    def counts(self) -> Counts:
        return {"end": self._ended_as, "resumptions": self._resumed, "events after an end": self._late}
