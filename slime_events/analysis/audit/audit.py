"""`Audit`: one pass over a log, every event shown to every check that hears it; `Report`: what came of it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

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
from slime_events.analysis.model.foreign import Foreign, describe
from storage.log import ForeignRecord, Recorded


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """One check. counts: what it looked at, by name."""

    name: str
    promise: str
    counts: dict[str, Any]
    findings: tuple[Finding, ...] = ()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Of one log. events: how many were read; unread: why reading stopped before the end, where it did. foreign: the
    records that are no events, and so break no promise.
    """

    run: str
    events: int
    checks: tuple[CheckReport, ...]
    unread: str | None = None
    foreign: tuple[Foreign, ...] = ()

    @property
    def findings(self) -> list[Finding]:
        """Of all checks, in the log's order."""
        return sorted((f for check in self.checks for f in check.findings), key=lambda finding: finding.position)

    @property
    def clean(self) -> bool:
        """Everything was read and nothing was found."""
        return self.unread is None and not self.findings


def report_text(report: Report, most: int) -> str:
    """An aligned line per check, and under it its first `most` findings (0: all)."""
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
            f"note   {'foreign':<11}  {len(report.foreign):,} records are no events of the run: folded as nothing"
        )
        lines += [f"       {foreign}" for foreign in shown_foreign]
        if len(report.foreign) > len(shown_foreign):
            lines.append(f"       and {len(report.foreign) - len(shown_foreign)} more (--most 0 shows all)")
    if report.unread is not None:
        lines.append(f"WRONG  {report.unread}")
    return "\n".join(lines)


def _counts(counts: dict[str, Any]) -> str:
    """Numbers with their names; what is zero is left out, as long as something is left."""
    shown = {name: value for name, value in counts.items() if value not in (0, None, {})} or counts
    return ", ".join(_count(name, value) for name, value in shown.items())


def _count(name: str, value: Any) -> str:
    if isinstance(value, dict):
        return f"{name}: " + " ".join(f"{key}:{count:,}" for key, count in value.items())
    return f"{value:,} {name}" if isinstance(value, int) else str(value)


class Audit:
    """rules: of a run whose run.started has no settings. fetch: arrays out of the blob store; None: blobs are not seen.
    weights: where weight folders are looked for before the path in the log; files: whether to look at them. parent: the
    ledger of the run that this one follows (`read_ledger`); without it a learner's rollouts are not checked.
    recorded: ends of the recorded rollouts that this run reuses (`recorded_ends`).
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
        self._checks: list[Check] = [  # in the order in which they are reported: from the record to the run
            self._positions, Lifetime(ledger), Prompts(ledger), Rollouts(ledger),
            RecordedRollouts(ledger, recorded or {}), Tokens(ledger, fetch), Sessions(ledger, fetch), Rewards(ledger),
            Verdicts(ledger), Commands(ledger, fetch), Batches(ledger), Steps(ledger), Training(ledger),
            Followed(ledger, parent),
            Staleness(ledger), Evaluations(ledger), Weights(ledger), Archive(ledger), Fold(ledger),
            *([WeightFiles(ledger, weights)] if files else []),
        ]  # fmt: skip
        self._hearing: dict[type[Event], list[Check]] = {
            kind: [check for check in self._checks if check.hears(kind)] for kind in EVENT_CLASSES
        }
        self._events = 0

    def apply(self, recorded: Recorded | ForeignRecord) -> None:
        """Take in the next record."""
        if isinstance(recorded, ForeignRecord):
            self._positions.pass_over(recorded.position)
            self._foreign.append(describe(recorded))
            self._ledger.passed += 1
            return
        self._events += 1
        event = recorded.envelope.event
        for check in self._hearing[type(event)]:
            if check.applies:
                check.recorded = recorded
                check.apply(event)
        self._ledger.apply(recorded)

    def finish(self, unread: str | None = None) -> Report:
        """The report, after the last event. unread: why there was no more to read."""
        checks = tuple(
            CheckReport(name=check.name, promise=check.promise, findings=tuple(check.finish()), counts=check.counts())
            for check in self._checks
            if check.applies
        )
        foreign = tuple(self._foreign)
        return Report(run=self._ledger.run, events=self._events, checks=checks, unread=unread, foreign=foreign)


async def audit(records: AsyncIterator[Recorded | ForeignRecord], auditor: Audit) -> Report:
    """Audit all that a log (or an archive) gives. What cannot be read ends the pass and stands in the report."""
    try:
        async for recorded in records:
            auditor.apply(recorded)
    except (SchemaError, LogDamaged, ArchiveDamaged) as error:
        return auditor.finish(f"reading stopped: {error}, so nothing after it could be audited")
    return auditor.finish()
