"""`evals_text`: evaluations as a table."""

from collections.abc import Mapping, Sequence
from typing import Any

from schemas.evals import rates_text
from slime_events.app.cli.render.text import table


def evals_text(evals: Sequence[Mapping[str, Any]], *, versions: bool = False) -> str:
    """Return a table with a row per evaluation; empty without any. versions: add the evaluated weight version."""
    if not evals:
        return ""
    rates = any(facts["pass_rates"] for facts in evals)
    rows = [
        [
            facts["dataset"],
            *([facts["version"]] if versions else []),
            f"{facts['mean']:.3f}",
            *([rates_text(facts["pass_rates"])] if rates else []),
            facts["samples"],
            facts["failed"],
            _answers_by(facts),
        ]
        for facts in evals
    ]
    head = ["eval", *(["version"] if versions else []), "mean", *(["pass@k"] if rates else []), "samples", "failed"]
    return table([*head, "answers by"], rows)


def _answers_by(facts: Mapping[str, Any]) -> str:
    """Return the weight versions that generated an evaluation's answers: `v20`, or `v20..v21`."""
    oldest, newest = facts["oldest_version"], facts["newest_version"]
    return f"v{oldest}" if oldest == newest else f"v{oldest}..v{newest}"
