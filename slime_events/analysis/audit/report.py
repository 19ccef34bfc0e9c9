"""`Report`: what an audit looked at and what it found."""

from __future__ import annotations

from typing import Any

import msgspec

from slime_events.analysis.audit.finding import Finding


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """One check. counts: what it looked at, by name."""

    name: str
    promise: str
    counts: dict[str, Any]
    findings: tuple[Finding, ...] = ()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Of one log. events: how many were read; unread: why reading stopped before the end, where it did."""

    run: str
    events: int
    checks: tuple[CheckReport, ...]
    unread: str | None = None

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
        mark = "WRONG" if check.findings else "ok"
        lines.append(f"{mark:<5}  {check.name:<11}  {check.promise:<{width}}  {_counts(check.counts)}".rstrip())
        shown = check.findings[:most] if most else check.findings
        lines += [f"       {finding}" for finding in shown]
        if len(check.findings) > len(shown):
            lines.append(f"       and {len(check.findings) - len(shown)} more of this check (--most 0 shows all)")
    if report.unread is not None:
        lines.append(f"WRONG  {report.unread}")
    return "\n".join(lines)


def _counts(counts: dict[str, Any]) -> str:
    """Numbers with their names; what is zero is left out, as long as something is left."""
    said = {name: value for name, value in counts.items() if value not in (0, None, {})} or counts
    return ", ".join(_count(name, value) for name, value in said.items())


def _count(name: str, value: Any) -> str:
    if isinstance(value, dict):
        return f"{name}: " + " ".join(f"{key}:{count:,}" for key, count in value.items())
    return f"{value:,} {name}" if isinstance(value, int) else str(value)
