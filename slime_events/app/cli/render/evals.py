"""`evals_text`: evaluations as a table."""

from collections.abc import Sequence

from schemas.evals import EvalCompleted, rates_text
from slime_events.app.cli.render.text import table


def evals_text(evals: Sequence[EvalCompleted], *, versions: bool = False) -> str:
    """Return a table with a row per evaluation; empty without any. versions: add the evaluated weight version."""
    if not evals:
        return ""
    rates = any(event.pass_rates for event in evals)
    rows = [
        [
            event.dataset,
            *([event.version] if versions else []),
            f"{event.mean:.3f}",
            *([rates_text(event.pass_rates)] if rates else []),
            event.samples,
            event.failed,
            _answers_by(event),
        ]
        for event in evals
    ]
    head = ["eval", *(["version"] if versions else []), "mean", *(["pass@k"] if rates else []), "samples", "failed"]
    return table([*head, "answers by"], rows)


def _answers_by(event: EvalCompleted) -> str:
    """Return the weight versions that generated an evaluation's answers: `v20`, or `v20..v21`."""
    oldest, newest = event.oldest_version, event.newest_version
    return f"v{oldest}" if oldest == newest else f"v{oldest}..v{newest}"
