"""`Report`: the result of an audit, with the findings of each check."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from schemas.doc import doc
from slime_events.model.foreign import Foreign

Counts = dict[str, Any]
"""Amounts that a check looked at, by name: numbers, words, and histograms as dicts of numbers."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One violation of a promise."""

    check: Annotated[str, doc("name of the check")]
    position: Annotated[int, doc("position of the event in the log")]
    event: Annotated[str, doc("type and entity of the event")]
    wrong: Annotated[str, doc("what is wrong")]
    means: Annotated[str, doc("what follows from it")]
    sentence: Annotated[str, doc("the finding in one sentence")]

    @classmethod
    def of(cls, check: str, position: int, event: str, wrong: str, means: str) -> Finding:
        """Return a finding with its sentence."""
        sentence = f"position {position}, {event}: {wrong}, so {means}"
        return cls(check=check, position=position, event=event, wrong=wrong, means=means, sentence=sentence)

    def __str__(self) -> str:
        return self.sentence


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one check."""

    name: Annotated[str, doc("name of the check, one word")]
    promise: Annotated[str, doc("what holds if there are no findings")]
    counts: Annotated[Counts, doc("amounts that the check looked at, by name: numbers, words, or histograms")]
    findings: Annotated[tuple[Finding, ...], doc("in the order of the log")] = ()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the audit of one log."""

    run: Annotated[str, doc("name of the run")]
    events: Annotated[int, doc("number of events read")]
    checks: Annotated[tuple[CheckReport, ...], doc("results of the checks that apply to the run")]
    unread: Annotated[str | None, doc("why reading stopped before the log's end; None if it did not")] = None
    foreign: Annotated[tuple[Foreign, ...], doc("records that are not events of the run; they break no promise")] = ()
    clean: Annotated[bool, doc("everything was read, and there are no findings")]
    seconds: Annotated[float, doc("time that the audit took [s]; 0 if it was not measured")] = 0.0

    @property
    def findings(self) -> list[Finding]:
        """Findings of all checks, in the order of the log."""
        return sorted((f for check in self.checks for f in check.findings), key=lambda finding: finding.position)
