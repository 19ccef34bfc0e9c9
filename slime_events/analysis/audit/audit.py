"""`Audit`: one pass over a log, every event shown to every check that hears it.

recorded -> checks that hear its type -> ledger -> next;  at the end: findings and counts of each check
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from schemas.errors import ArchiveDamaged, LogDamaged, SchemaError
from schemas.event import Event
from schemas.registry import EVENT_CLASSES
from slime_events.analysis.audit.check import Check
from slime_events.analysis.audit.ledger import Ledger
from slime_events.analysis.audit.recalled import RecordedEnds
from slime_events.analysis.audit.registry import make_checks
from slime_events.analysis.audit.report import CheckReport, Report
from slime_events.analysis.audit.rules import Rules
from slime_events.analysis.audit.tokens import Fetch
from storage.log import Recorded


class Audit:
    """rules: of a run whose run.started has no settings. fetch: arrays out of the blob store; None: blobs are not seen.
    weights: where weight folders lie if not where the log says; files: whether to look at them. parent: what the log of
    the run that this one follows holds (`facts_of`); without it the rollouts of a learner are not looked at. recorded:
    ends of the rollouts that it recalls (`recorded_ends`), which are looked up there.
    """

    def __init__(
        self,
        run: str,
        *,
        rules: Rules | None = None,
        fetch: Fetch | None = None,
        weights: Path | None = None,
        files: bool = True,
        parent: Ledger | None = None,
        recorded: RecordedEnds | None = None,
    ) -> None:
        self._ledger = Ledger(run, rules or Rules())
        self._checks = make_checks(
            self._ledger, fetch=fetch, weights=weights, files=files, parent=parent, recorded=recorded
        )
        self._hearing: dict[type[Event], list[Check]] = {
            kind: [check for check in self._checks if not check.hears or kind in check.hears] for kind in EVENT_CLASSES
        }
        self._events = 0

    def apply(self, recorded: Recorded) -> None:
        """Take in the next event."""
        self._events += 1
        for check in self._hearing[type(recorded.envelope.event)]:
            if check.applies:
                check.apply(recorded)
        self._ledger.apply(recorded)

    def finish(self, unread: str | None = None) -> Report:
        """The report, after the last event. unread: why there was no more to read."""
        checks = tuple(
            CheckReport(name=check.name, promise=check.promise, findings=tuple(check.finish()), counts=check.counts())
            for check in self._checks
            if check.applies
        )
        return Report(run=self._ledger.run, events=self._events, checks=checks, unread=unread)


async def audit(records: AsyncIterator[Recorded], auditor: Audit) -> Report:
    """Audit all that a log (or an archive) gives. What cannot be read ends the pass and is said in the report."""
    try:
        async for recorded in records:
            auditor.apply(recorded)
    except (SchemaError, LogDamaged, ArchiveDamaged) as error:
        return auditor.finish(f"reading stopped: {error}, so nothing after it could be audited")
    return auditor.finish()
