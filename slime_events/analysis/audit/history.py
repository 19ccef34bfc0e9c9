"""The log as a whole: its records, the run's beginning and ends, its archive, the state that it folds to."""

from schemas.archives import ArchiveSealed
from schemas.batches import BatchSealed
from schemas.envelope import event_id
from schemas.evals import EvalCompleted
from schemas.groups import GroupAccepted, GroupRejected
from schemas.rollouts import RolloutRequested
from schemas.runs import FinishReason, RunFailed, RunFinished, RunResumed, RunStarted
from slime_events.analysis.audit.check import Check, Counts
from slime_events.analysis.audit.ledger import Ledger
from slime_events.core.state.apply import apply
from slime_events.core.state.run import FOLD, RunState, state_digest
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
            self.find(recorded, "its id is not that of its content", "it was changed after it was written")
        first = self._by_id.setdefault(envelope.id, recorded.position)
        if first != recorded.position:
            self.find(recorded, f"it is at position {first} already", "one event is stored twice")
        if envelope.cause is not None:
            self._causes += 1
            if envelope.cause not in self._by_id:
                wrong = f"its cause {envelope.cause} is not in the log before it"
                self.find(recorded, wrong, "what led to it is missing or comes later")

    def counts(self) -> Counts:
        return {"events": self._events, "causes": self._causes}


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
            wrong = f"it counts {event.events} events before it, and there are {self.ledger.position}"
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


class Archive(Check):
    """`archive.sealed` events alone: the segments themselves are verified by their readers."""

    name = "archive"
    promise = "sealed segments join, each sealed after all that it holds"

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger, {ArchiveSealed: self._sealed})
        self._segments = 0
        self._last: ArchiveSealed | None = None

    def _sealed(self, recorded: Recorded, event: ArchiveSealed) -> None:
        before = self._last
        self._segments, self._last = self._segments + 1, event
        if event.last >= recorded.position or event.first > event.last:
            wrong = f"it holds positions {event.first} to {event.last}"
            self.find(recorded, wrong, "it cannot be a copy of the events before it")
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
