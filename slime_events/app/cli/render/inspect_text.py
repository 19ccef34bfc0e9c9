"""The findings of an inspection for a terminal."""

from collections.abc import Sequence

from slime_events.analysis.query.detectors.detector import Detector
from slime_events.analysis.query.inspection import Checked, Inspection, Value
from slime_events.app.cli.render.text import fields, paragraphs, shorten, table

WIDTH = 100
"""Most characters of a text in a finding."""
ROWS = 5
"""Most findings of a detector that are shown."""


def inspection_text(view: Inspection, run: str) -> str:
    """Return an inspection as text. run: the run as the user named it, for commands."""
    rows = [(checked.name, checked.severity.value, _state(checked)) for checked in view.detectors]
    return paragraphs(
        _head(view),
        table(("detector", "severity", "findings"), rows),
        *(_detected(checked, run) for checked in view.with_findings),
    )


def detectors_text(detectors: Sequence[Detector]) -> str:
    """Return every detector with its parameters."""
    return paragraphs(*map(_described, detectors))


def _described(detector: Detector) -> str:
    rows = [(p.name, f"{p.default:g}", p.description) for p in detector.parameters]
    return f"{detector.name} ({detector.severity}): {detector.finds}\n" + table(
        ("parameter", "default", "meaning"), rows, "  "
    )


def _head(view: Inspection) -> str:
    steps = "no step" if view.first_step is None else f"steps {view.first_step} to {view.last_step}"
    second = f", {view.graded_twice:,} of them by a second grader too" if view.graded_twice else ""
    return f"run {view.run}: {view.graded:,} graded answers of {steps}{second}"


def _state(checked: Checked) -> str:
    return str(len(checked.findings)) if checked.findings else "-"


def _detected(checked: Checked, run: str) -> str:
    """Return the findings of a detector, the query for all, and a command for the first sample."""
    parts = [fields(_pairs(finding), "  ") for finding in checked.findings[:ROWS]]
    left = len(checked.findings) - ROWS
    parts += [f"  and {left} more (--json has all)"] if left > 0 else []
    samples = [sample for finding in checked.findings for sample in _samples(finding)]
    commands = [] if checked.compares_graders else [f'slime-events query {run} "{checked.sql}"']
    commands += [f"slime-events show {run} --sample {shorten(samples[0], WIDTH)}"] if samples else []
    more = "\n".join(f"  {command}" for command in commands)
    return f"{checked.severity.upper()} {checked.name}: {checked.finds}\n" + "\n\n".join([*parts, more])


def _samples(finding: dict[str, Value]) -> list[str]:
    samples = finding.get("samples")
    return samples if isinstance(samples, list) else []


def _pairs(finding: dict[str, Value]) -> list[tuple[str, object]]:
    return [(name.replace("_", " "), _cell(value)) for name, value in finding.items()]


def _cell(value: Value) -> object:
    if isinstance(value, list):
        return shorten(" ".join(value), WIDTH)
    return shorten(value, WIDTH) if isinstance(value, str) else value
