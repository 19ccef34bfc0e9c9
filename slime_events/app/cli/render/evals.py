"""`evals_text`: evaluations as a table."""

from collections.abc import Mapping, Sequence
from typing import Any

from schemas.evals import rates_text
from slime_events.app.cli.render.text import table


def evals_text(evals: Sequence[Mapping[str, Any]], *, versions: bool = False) -> str:
    """A line for each evaluation; empty without any. versions: with the version that each is of."""
    if not evals:
        return ""
    rates = any(one["pass_rates"] for one in evals)
    rows = [
        [
            one["dataset"],
            *([one["version"]] if versions else []),
            f"{one['mean']:.3f}",
            *([rates_text(one["pass_rates"])] if rates else []),
            one["samples"],
            one["failed"],
            _answers_by(one),
        ]
        for one in evals
    ]
    head = ["eval", *(["version"] if versions else []), "mean", *(["pass@k"] if rates else []), "samples", "failed"]
    return table([*head, "answers by"], rows)


def _answers_by(facts: Mapping[str, Any]) -> str:
    """`v20`, or `v20..v21`: the weights that made the answers of an evaluation."""
    oldest, newest = facts["oldest_version"], facts["newest_version"]
    return f"v{oldest}" if oldest == newest else f"v{oldest}..v{newest}"
