"""The report of an audit for a terminal."""

from typing import Any

from slime_events.analysis.audit.report import Report


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


def verdict_text(report: Report) -> str:
    """Return the last line of an audit: whether the run is clean, and how much was read."""
    foreign = f" and {len(report.foreign):,} foreign records" if report.foreign else ""
    pace = f"{report.events:,} events{foreign} in {report.seconds:.1f} s"
    if report.clean:
        return f"run {report.run} is clean: {len(report.checks)} checks, {pace}"
    unread = "" if report.unread is None else " and was not read to its end"
    findings = sum(len(check.findings) for check in report.checks)
    return f"run {report.run} has {findings} findings{unread}: {len(report.checks)} checks, {pace}"
