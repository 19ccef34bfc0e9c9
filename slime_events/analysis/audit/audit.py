"""`Audit`: one pass over a log that shows every event to every check that handles it."""

from collections.abc import AsyncIterator
from pathlib import Path

from schemas.errors import ArchiveDamaged, LogDamaged, SchemaError
from schemas.event import Event
from schemas.registry import EVENT_CLASSES
from slime_events.analysis.audit.batches import Batches, Followed
from slime_events.analysis.audit.check import Check
from slime_events.analysis.audit.commands import Commands
from slime_events.analysis.audit.evaluations import Evaluations
from slime_events.analysis.audit.groups import Rewards, Verdicts
from slime_events.analysis.audit.history import Archive, Fold, Lifetime, Positions
from slime_events.analysis.audit.ledger import Ledger, Rules
from slime_events.analysis.audit.places import Devices, Transfers
from slime_events.analysis.audit.prompts import Prompts
from slime_events.analysis.audit.recorded_rollouts import RecordedEnds, RecordedRollouts
from slime_events.analysis.audit.report import CheckReport, Report
from slime_events.analysis.audit.rollouts import Rollouts
from slime_events.analysis.audit.sessions import Sessions
from slime_events.analysis.audit.steps import Staleness, Steps, Training
from slime_events.analysis.audit.tokens import Fetch, Tokens
from slime_events.analysis.audit.weights import WeightFiles, Weights
from slime_events.model.foreign import Foreign, describe
from storage.log import ForeignRecord, Recorded


class Audit:
    """One pass over a log.

    rules: for a run whose run.started has no settings. fetch: reads arrays from the blob store; None: blobs are not
    checked. weights: path or URL that is searched for weights before the path in the log. files: whether to check
    weight folders. parent: ledger of the run that this one follows (`read_ledger`); without it a learner's rollouts are
    not checked. recorded: ends of the recorded rollouts that this run reuses (`recorded_ends`).
    """

    def __init__(
        self,
        run: str,
        *,
        rules: Rules | None = None,
        fetch: Fetch | None = None,
        weights: str | Path | None = None,
        files: bool = True,
        parent: Ledger | None = None,
        recorded: RecordedEnds | None = None,
    ) -> None:
        self._ledger = ledger = Ledger(run, rules or Rules())
        self._positions, self._foreign = Positions(ledger), list[Foreign]()
        self._checks: list[Check] = [  # in the order of the report: from records to the whole run
            self._positions, Lifetime(ledger), Prompts(ledger), Rollouts(ledger),
            RecordedRollouts(ledger, recorded or {}), Tokens(ledger, fetch), Sessions(ledger, fetch), Rewards(ledger),
            Verdicts(ledger), Commands(ledger, fetch), Batches(ledger), Steps(ledger), Training(ledger),
            Followed(ledger, parent),
            Staleness(ledger), Evaluations(ledger), Weights(ledger), Transfers(ledger),
            Devices(ledger), Archive(ledger), Fold(ledger),
            *([WeightFiles(ledger, weights)] if files else []),
        ]  # fmt: skip
        self._handling: dict[type[Event], list[Check]] = {
            kind: [check for check in self._checks if check.handles(kind)] for kind in EVENT_CLASSES
        }
        self._events = 0

    def apply(self, recorded: Recorded | ForeignRecord) -> None:
        if isinstance(recorded, ForeignRecord):
            self._positions.skip(recorded.position)
            self._foreign.append(describe(recorded))
            self._ledger.passed += 1
            return
        self._events += 1
        event = recorded.envelope.event
        for check in self._handling[type(event)]:
            if check.applies:
                check.recorded = recorded
                check.apply(event)
        self._ledger.apply(recorded)

    def finish(self, unread: str | None = None) -> Report:
        """Return the report, after the last event. unread: why reading stopped early."""
        checks = tuple(
            CheckReport(name=check.name, promise=check.promise, findings=tuple(check.finish()), counts=check.counts())
            for check in self._checks
            if check.is_reported
        )
        foreign = tuple(self._foreign)
        return Report(
            run=self._ledger.run,
            events=self._events,
            checks=checks,
            unread=unread,
            foreign=foreign,
            clean=unread is None and not any(check.findings for check in checks),
        )


async def audit(records: AsyncIterator[Recorded | ForeignRecord], auditor: Audit) -> Report:
    """Audit all records of a log or an archive. A record that cannot be read ends the pass; the report names it."""
    try:
        async for recorded in records:
            auditor.apply(recorded)
    except (SchemaError, LogDamaged, ArchiveDamaged) as error:
        return auditor.finish(f"reading stopped: {error}. Nothing after it was audited")
    return auditor.finish()
