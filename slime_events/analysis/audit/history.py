"""The log as a whole: its records, the run's start and ends, its archive, and the state that it folds to."""

from schemas.archives import ArchiveSealed
from schemas.batches import BatchSealed
from schemas.envelope import event_id
from schemas.evals import EvalCompleted
from schemas.event import Event, Purpose
from schemas.groups import GroupAccepted, GroupRejected
from schemas.rollouts import RolloutRequested
from schemas.runs import FinishReason, RunFailed, RunFinished, RunResumed, RunStarted
from slime_events.analysis.audit.check import Check
from slime_events.analysis.audit.ledger import Ledger
from slime_events.core.state.apply import apply
from slime_events.core.state.run import RunState, digest_by
from slime_events.plugins.texts import Texts


class Positions(Check):
    """Holds for every event, whatever its type."""

    name = "positions"
    promise = "no gap, every id once and its event's own, every cause before its effect"
    counted = ("events", "causes")

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._by_id: dict[str, int] = {}
        self._before = 0

    def skip(self, foreign: int) -> None:
        """Take in the position of a foreign record: no event is missing there."""
        if foreign == self._before + 1:
            self._before = foreign

    def apply(self, event: Event) -> None:
        self.seen["events"] += 1
        envelope, position, expected = self.recorded.envelope, self.recorded.position, self._before + 1
        self._before = position
        if position > expected:
            last = position - 1
            gone = f"position {last} is" if last == expected else f"positions {expected} to {last} are"
            self.find(f"{gone} missing before it", "an event was removed from the log")
        elif position < expected:
            self.find(f"it comes after position {self.ledger.position}", "the log was reordered")
        if self.recorded.subject != envelope.subject or envelope.run != self.ledger.run:
            wrong = f"it is stored under {self.recorded.subject}, and its envelope has {envelope.subject}"
            self.find(wrong, "it was moved there, past the fences")
        if event_id(envelope.run, event) != envelope.id:
            self.find("its id does not match its content", "it was changed after it was written")
        if (first := self._by_id.setdefault(envelope.id, position)) != position:
            self.find(f"it is already at position {first}", "one event is stored twice")
        if envelope.cause is not None:
            self.seen["causes"] += 1
            if envelope.cause not in self._by_id:
                wrong = f"its cause {envelope.cause} is not in the log before it"
                self.find(wrong, "its cause is missing or comes later")


DECISIONS = (RolloutRequested, GroupAccepted, GroupRejected, BatchSealed, EvalCompleted, RunFinished)
"""Events that may not follow an end. Work that was under way then (a chunk, a reward, an upload) may still arrive: it
is acked and counts if the run is resumed.
"""


def _is_call(event: Event) -> bool:
    """Return whether an agent requested it: a gateway may outlive the run, and learns of its end a moment later."""
    return isinstance(event, RolloutRequested) and event.purpose is Purpose.CALL


class Lifetime(Check):
    """A run starts once, ends, and continues only after it was resumed."""

    name = "lifetime"
    promise = "run.started first, no decision after an end that was not resumed"
    counted = ("end", "resumptions", "events after an end")

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.seen["end"] = "running"

    def apply(self, event: Event) -> None:
        ledger = self.ledger
        if isinstance(event, RunStarted) == bool(ledger.position):
            wrong = "the run had already started" if ledger.position else "the log does not begin with run.started"
            self.find(wrong, "this is not the complete log of one run")
        if ledger.ended and not isinstance(event, RunResumed):
            self.seen["events after an end"] += 1
            if isinstance(event, DECISIONS) and not _is_call(event):
                wrong = f"the run had ended at position {ledger.ended} and was not resumed"
                self.find(wrong, "a process that should have ended still makes decisions")
        if isinstance(event, RunResumed):
            self._resume(event)
        elif isinstance(event, RunFinished):
            self._finish(event)
        elif isinstance(event, RunFailed):
            self.seen["end"] = "failed"

    def _resume(self, event: RunResumed) -> None:
        self.seen["resumptions"] += 1
        self.seen["end"] = "running"
        if event.incarnation != self.ledger.incarnation + 1:
            wrong = f"it is incarnation {event.incarnation} after {self.ledger.incarnation}"
            self.find(wrong, "a resumption is missing, or two happened at once")

    def _finish(self, event: RunFinished) -> None:
        self.seen["end"] = f"finished ({event.reason.value})"
        if event.events != (before := self.ledger.position - self.ledger.foreign):
            wrong = f"it has {event.events} events before it, and the log {before}"
            self.find(wrong, "events before it were added or removed")
        if event.steps != self.ledger.steps_committed:
            wrong = f"it has {event.steps} steps, and {self.ledger.steps_committed} are committed"
            self.find(wrong, "a step is missing or was added")
        plan = self.ledger.rules.plan
        if event.reason is FinishReason.ALL_STEPS and plan is not None and event.steps < plan.steps:
            wrong = f"its reason is that all steps are done, and {event.steps} of {plan.steps} are committed"
            self.find(wrong, "the run ended too early")


class Archive(Check):
    """Checks `archive.sealed` events alone. Readers of the archive verify the segments themselves."""

    name = "archive"
    promise = "segments without a gap, each sealed after the events it holds"
    counted = ("segments", "positions")

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._last: ArchiveSealed | None = None

    def _on_archive_sealed(self, event: ArchiveSealed) -> None:
        before, self._last = self._last, event
        self.seen["segments"] += 1
        self.seen["positions"] = event.last
        if event.last >= self.recorded.position or event.first > event.last:
            wrong = f"it holds positions {event.first} to {event.last}"
            self.find(wrong, "it cannot be a copy of the events before it")
        expected = 1 if event.segment == 1 else before.last + 1 if before and _follows(before, event) else event.first
        if event.first != expected:
            wrong = f"it begins at position {event.first}, and the segments before it end at {expected - 1}"
            self.find(wrong, "the archive alone cannot restore the log")


def _follows(before: ArchiveSealed, event: ArchiveSealed) -> bool:
    """Return whether it is the next segment of the same archive: a restored run may continue with another one."""
    same = event.url.rpartition("/")[0] == before.url.rpartition("/")[0]
    return same and event.segment == before.segment + 1


class Fold(Check):
    """The state chains over all bytes of all events, so its digest belongs to exactly this log."""

    name = "fold"
    promise = "the log folds to the digest that each end records"
    counted = ("ends compared", "ends of other fold rules")

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._state, self._texts = RunState(run=ledger.run), Texts(of_all=True)
        self._broken = False

    def apply(self, event: Event) -> None:
        if self._broken:
            return
        if isinstance(event, RunFinished):
            digest = digest_by(event.fold, self._state, self._texts.with_texts)
            self.seen["ends of other fold rules" if digest is None else "ends compared"] += 1
            if digest not in (None, event.state_digest):
                wrong = f"the {self._state.events} events before it fold to another state"
                self.find(wrong, "an event was changed, added or replaced since")
        try:
            apply(self._state, self.recorded)
            self._texts.apply(event, self._state)
        except (KeyError, ValueError, IndexError) as error:
            self._broken = True
            wrong = f"it does not fit the events before it ({type(error).__name__}: {error})"
            self.find(wrong, "one of them is missing or was changed")
