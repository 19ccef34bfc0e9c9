"""`Audit`: one pass over a log that shows every event to every check that handles it. `Report`: its result."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import msgspec

from schemas.doc import doc
from schemas.errors import ArchiveDamaged, LogDamaged, SchemaError
from schemas.event import Event
from schemas.registry import EVENT_CLASSES
from slime_events.analysis.audit.batches import Batches, Followed
from slime_events.analysis.audit.check import Check, Finding
from slime_events.analysis.audit.commands import Commands
from slime_events.analysis.audit.evaluations import Evaluations
from slime_events.analysis.audit.groups import Rewards, Verdicts
from slime_events.analysis.audit.history import Archive, Fold, Lifetime, Positions
from slime_events.analysis.audit.ledger import Ledger, Rules
from slime_events.analysis.audit.prompts import Prompts
from slime_events.analysis.audit.recorded_rollouts import RecordedEnds, RecordedRollouts
from slime_events.analysis.audit.rollouts import Rollouts
from slime_events.analysis.audit.sessions import Sessions
from slime_events.analysis.audit.steps import Staleness, Steps, Training
from slime_events.analysis.audit.tokens import Fetch, Tokens
from slime_events.analysis.audit.weights import WeightFiles, Weights
from slime_events.model.foreign import Foreign, describe
from storage.log import ForeignRecord, Recorded


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one check."""

    name: Annotated[str, doc("name of the check, one word")]
    promise: Annotated[str, doc("what holds if there are no findings")]
    counts: Annotated[dict[str, Any], doc("amounts that the check looked at, by name: numbers, words, or histograms")]
    findings: Annotated[tuple[Finding, ...], doc("in the order of the log")] = ()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the audit of one log."""

    run: Annotated[str, doc("name of the run")]
    events: Annotated[int, doc("number of events read")]
    checks: Annotated[tuple[CheckReport, ...], doc("results of the checks that apply to the run")]
    unread: Annotated[str | None, doc("why reading stopped before the log's end; None if it did not")] = None
    foreign: Annotated[tuple[Foreign, ...], doc("records that are not events of the run; they break no promise")] = ()

    @property
    def findings(self) -> list[Finding]:
        """Findings of all checks, in the order of the log."""
        return sorted((f for check in self.checks for f in check.findings), key=lambda finding: finding.position)

    @property
    def clean(self) -> bool:
        """Whether everything was read and there are no findings."""
        return self.unread is None and not self.findings


def report_text(report: Report, most: int) -> str:
    """Return an aligned line per check, each followed by its first `most` findings (0: all)."""
    width = max(len(check.promise) for check in report.checks)
    lines: list[str] = []
    for check in report.checks:
        mark, shown = "WRONG" if check.findings else "ok", check.findings[: most or None]
        lines.append(f"{mark:<5}  {check.name:<11}  {check.promise:<{width}}  {_counts(check.counts)}".rstrip())
        lines += [f"       {finding}" for finding in shown]
        if len(check.findings) > len(shown):
            lines.append(f"       and {len(check.findings) - len(shown)} more of this check (--most 0 shows all)")
    if report.foreign:
        shown_foreign = report.foreign[: most or None]
        lines.append(
            f"note   {'foreign':<11}  {len(report.foreign):,} records are not events of the run and have no effect"
        )
        lines += [f"       {foreign}" for foreign in shown_foreign]
        if len(report.foreign) > len(shown_foreign):
            lines.append(f"       and {len(report.foreign) - len(shown_foreign)} more (--most 0 shows all)")
    if report.unread is not None:
        lines.append(f"WRONG  {report.unread}")
    return "\n".join(lines)


def _counts(counts: dict[str, Any]) -> str:
    """Return numbers with their names. Zeros are left out, unless all are zero."""
    shown = {name: value for name, value in counts.items() if value not in (0, None, {})} or counts
    return ", ".join(_count(name, value) for name, value in shown.items())


def _count(name: str, value: object) -> str:
    if isinstance(value, dict):
        return f"{name}: " + " ".join(f"{key}:{count:,}" for key, count in value.items())
    return f"{value:,} {name}" if isinstance(value, int) else str(value)


class Audit:
    """One pass over a log.

    rules: for a run whose run.started has no settings. fetch: reads arrays from the blob store; None: blobs are not
    checked. weights: folder that is searched for weights before the path in the log. files: whether to check weight
    folders. parent: ledger of the run that this one follows (`read_ledger`); without it a learner's rollouts are not
    checked. recorded: ends of the recorded rollouts that this run reuses (`recorded_ends`).
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
        self._ledger = ledger = Ledger(run, rules or Rules())
        self._positions, self._foreign = Positions(ledger), list[Foreign]()
        self._checks: list[Check] = [  # in the order of the report: from records to the whole run
            self._positions, Lifetime(ledger), Prompts(ledger), Rollouts(ledger),
            RecordedRollouts(ledger, recorded or {}), Tokens(ledger, fetch), Sessions(ledger, fetch), Rewards(ledger),
            Verdicts(ledger), Commands(ledger, fetch), Batches(ledger), Steps(ledger), Training(ledger),
            Followed(ledger, parent),
            Staleness(ledger), Evaluations(ledger), Weights(ledger), Archive(ledger), Fold(ledger),
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
            if check.applies
        )
        foreign = tuple(self._foreign)
        return Report(run=self._ledger.run, events=self._events, checks=checks, unread=unread, foreign=foreign)


async def audit(records: AsyncIterator[Recorded | ForeignRecord], auditor: Audit) -> Report:
    """Audit all records of a log or an archive. A record that cannot be read ends the pass; the report names it."""
    try:
        async for recorded in records:
            auditor.apply(recorded)
    except (SchemaError, LogDamaged, ArchiveDamaged) as error:
        return auditor.finish(f"reading stopped: {error}. Nothing after it was audited")
    return auditor.finish()
