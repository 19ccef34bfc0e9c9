"""The views of the console: a row each. A new view is a row here, and every test of this folder looks at it."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote, urlencode


class Sights(NamedTuple):
    """What the URLs of a run's views name. others: served runs that are drawn over it."""

    run: str
    group: str
    sample: str
    step: int = 0
    version: int = 1
    others: tuple[str, ...] = ()


ALL: dict[str, str] = {
    "runs": "/",
    "now": "/runs/{run}/now",
    "timeline": "/runs/{run}/timeline",
    "metrics": "/runs/{run}/metrics",
    "metrics by time": "/runs/{run}/metrics?by=seconds",
    "metrics of several runs": "/runs/{run}/metrics?by=trained_tokens&{others}",
    "samples": "/runs/{run}/samples",
    "samples filtered": "/runs/{run}/samples?filter=reward:eq:0&order=-tokens",
    "group": "/runs/{run}/groups/{group}",
    "rollout": "/runs/{run}/rollouts/{sample}",
    "rollout by version": "/runs/{run}/rollouts/{sample}?overlay=version",
    "rollout by advantage": "/runs/{run}/rollouts/{sample}?overlay=advantage",
    "steps": "/runs/{run}/steps",
    "step": "/runs/{run}/steps/{step}",
    "versions": "/runs/{run}/versions",
    "version": "/runs/{run}/versions/{version}",
    "touched": "/runs/{run}/versions?{touched}",
    "time machine": "/runs/{run}/time",
    "time machine, two positions": "/runs/{run}/time?at=9&other=4",
    "compare": "/compare?{compared}",
    "rescore": "/runs/{run}/rescore?reward=exact&filter=check_reward_nonzero_std",
}
"""URLs by name."""


def paths(of: Sights) -> dict[str, str]:
    """Return the URL of each view."""
    quoted = {name: quote(str(value), safe="") for name, value in of._asdict().items()}
    quoted |= {"touched": urlencode({"sample": of.sample}), "compared": urlencode({"a": of.run, "b": of.run})}
    quoted["others"] = urlencode({"with": of.others}, doseq=True)
    return {name: pattern.format(**quoted) for name, pattern in ALL.items()}
